// TensorRef: a borrowed view of a torch.Tensor for the length of one call, without linking to torch.
//
// The fast way in is torch's DLPack C exchange API (torch >= 2.10, about 0.1 us per tensor); without it, or
// with INFERX_NO_DLPACK_API=1, Python attributes are read (about 1 us per tensor).  Only objects whose type
// is exactly torch.Tensor or torch.nn.Parameter are taken: a FakeTensor or another subclass may have no
// storage.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>

#include "bindings/dlpack.h"
#include "dtype.h"

namespace inferx {

constexpr int kMaxDims = 8;

struct TensorRef {
  void* data = nullptr;
  int32_t ndim = 0;
  DType dtype = DType::other;
  int32_t device_type = 0;  // dlpack::DeviceType, -1 for devices that no op of ours knows
  int32_t device_id = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;         // in elements
  int64_t shape_and_strides[2 * kMaxDims];  // storage for the two pointers above on the attribute path

  TensorRef() = default;
  TensorRef(const TensorRef&) = delete;  // shape may point into the object itself
  TensorRef& operator=(const TensorRef&) = delete;

  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  int64_t size(int dim) const { return shape[dim < 0 ? dim + ndim : dim]; }
  int64_t stride(int dim) const { return strides[dim < 0 ? dim + ndim : dim]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= shape[i];
    return n;
  }
  bool is_cpu() const { return device_type == dlpack::kCPU; }
  bool is_cuda() const { return device_type == dlpack::kCUDA; }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int i = ndim - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }
};

// Fills `tensor` from a Python object.  False: it is no torch.Tensor; other failures throw.
bool load_tensor(PyObject* object, TensorRef& tensor);

// torch's current CUDA stream on a device, as a cudaStream_t in a void*.
void* current_cuda_stream(int device_id);

// "dlpack" or "attributes": which of the two ways is in use.
const char* tensor_access();

}  // namespace inferx

namespace pybind11::detail {
template <>
struct type_caster<inferx::TensorRef> {
  inferx::TensorRef value;
  static constexpr auto name = const_name("torch.Tensor");
  bool load(handle source, bool) { return inferx::load_tensor(source.ptr(), value); }
  operator inferx::TensorRef&() { return value; }
  operator const inferx::TensorRef&() { return value; }
  template <class T>
  using cast_op_type = const inferx::TensorRef&;
};
}  // namespace pybind11::detail
