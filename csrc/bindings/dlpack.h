// The part of the DLPack 1.x ABI that is used here: a borrowed tensor view, and the C exchange API that
// torch >= 2.10 publishes as torch.Tensor.__dlpack_c_exchange_api__.  Layouts must match DLPack's.
#pragma once
#include <cstdint>

namespace inferx::dlpack {

enum DeviceType : int32_t { kCPU = 1, kCUDA = 2 };

enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12,
};

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  // an older ABI of the same provider, or null
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  int (*tensor_from_py_object)(void* object, Tensor* out);  // borrows; 0 or a Python error is set
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace inferx::dlpack
