#include "bindings/tensor_ref.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace inferx {
namespace {

DType from_dlpack(dlpack::DataType type) {
  if (type.lanes != 1) return DType::other;
  switch (type.code) {
    case dlpack::kFloat:
      return type.bits == 32   ? DType::f32
             : type.bits == 16 ? DType::f16
             : type.bits == 64 ? DType::f64
                               : DType::other;
    case dlpack::kBfloat:
      return type.bits == 16 ? DType::bf16 : DType::other;
    case dlpack::kFloat8E4M3FN:
      return DType::f8e4m3;
    case dlpack::kFloat8E5M2:
      return DType::f8e5m2;
    case dlpack::kInt:
      switch (type.bits) {
        case 8:
          return DType::i8;
        case 16:
          return DType::i16;
        case 32:
          return DType::i32;
        case 64:
          return DType::i64;
        default:
          return DType::other;
      }
    case dlpack::kUInt:
      return type.bits == 8 ? DType::u8 : DType::other;
    case dlpack::kBool:
      return DType::boolean;
    default:
      return DType::other;
  }
}

// What is looked up in torch once per process.  Objects are leaked on purpose: they live as long as torch.
struct Torch {
  PyTypeObject* tensor_type = nullptr;
  PyTypeObject* parameter_type = nullptr;
  const dlpack::ExchangeApi* api = nullptr;
  PyObject* raw_stream = nullptr;  // torch._C._cuda_getCurrentRawStream of CUDA builds, for torch < 2.10
  std::vector<std::pair<PyObject*, DType>> dtypes;

  Torch();
};

const dlpack::ExchangeApi* find_exchange_api(py::handle tensor_class) {
  const char* disabled = std::getenv("INFERX_NO_DLPACK_API");
  if ((disabled && *disabled && std::strcmp(disabled, "0") != 0) ||
      !py::hasattr(tensor_class, "__dlpack_c_exchange_api__")) {
    return nullptr;
  }
  py::object capsule = tensor_class.attr("__dlpack_c_exchange_api__");
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->version.major > 1) api = api->previous;
  if (!api || api->version.major != 1 || !api->tensor_from_py_object || !api->current_work_stream)
    return nullptr;
  return api;
}

Torch::Torch() {
  py::module_ torch = py::module_::import("torch");
  py::object tensor_class = torch.attr("Tensor");
  tensor_type = reinterpret_cast<PyTypeObject*>(py::object(tensor_class).release().ptr());
  parameter_type =
      reinterpret_cast<PyTypeObject*>(py::object(torch.attr("nn").attr("Parameter")).release().ptr());
  api = find_exchange_api(tensor_class);
  for (int i = 0; i < static_cast<int>(DType::other); ++i) {
    const DType dtype = static_cast<DType>(i);
    if (py::hasattr(torch, dtype_name(dtype))) {
      dtypes.emplace_back(py::object(torch.attr(dtype_name(dtype))).release().ptr(), dtype);
    }
  }
  py::object torch_c = torch.attr("_C");
  if (py::hasattr(torch_c, "_cuda_getCurrentRawStream")) {
    raw_stream = py::object(torch_c.attr("_cuda_getCurrentRawStream")).release().ptr();
  }
}

const Torch& torch_once() {
  static const Torch* torch = nullptr;  // no function-local guard: importing torch may release the GIL
  if (!torch) torch = new Torch();
  return *torch;
}

void check_ndim(int64_t ndim) {
  if (ndim <= kMaxDims) return;
  throw py::value_error("a tensor of " + std::to_string(ndim) + " dimensions; at most " +
                        std::to_string(kMaxDims) + " are supported");
}

// A tensor with elements but without memory (torch's efficient zero tensors, a storage resized to nothing).
void check_memory(const TensorRef& t) {
  if (t.data || t.device_type < 0) return;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return;
  }
  throw py::value_error("a tensor that has elements but no memory");
}

void load_from_attributes(py::handle object, const Torch& torch, TensorRef& t) {
  py::tuple shape = object.attr("shape"), strides = object.attr("stride")();
  check_ndim(static_cast<int64_t>(shape.size()));
  t.ndim = static_cast<int32_t>(shape.size());
  for (int i = 0; i < t.ndim; ++i) {
    t.shape_and_strides[i] = shape[i].cast<int64_t>();
    t.shape_and_strides[kMaxDims + i] = strides[i].cast<int64_t>();
  }
  t.shape = t.shape_and_strides;
  t.strides = t.shape_and_strides + kMaxDims;

  py::object dtype = object.attr("dtype");
  for (const auto& known : torch.dtypes) {
    if (known.first == dtype.ptr()) t.dtype = known.second;
  }

  py::object device = object.attr("device"), index = device.attr("index");
  const std::string type = device.attr("type").cast<std::string>();
  t.device_type = type == "cpu" ? dlpack::kCPU : type == "cuda" ? dlpack::kCUDA : -1;
  t.device_id = index.is_none() ? 0 : index.cast<int>();
  t.data = t.device_type < 0 ? nullptr : reinterpret_cast<void*>(object.attr("data_ptr")().cast<uintptr_t>());
}

}  // namespace

bool load_tensor(PyObject* object, TensorRef& t) {
  const Torch& torch = torch_once();
  PyTypeObject* type = Py_TYPE(object);
  if (type != torch.tensor_type && type != torch.parameter_type) return false;
  if (!torch.api) {
    load_from_attributes(object, torch, t);
    check_memory(t);
    return true;
  }
  dlpack::Tensor view;
  if (torch.api->tensor_from_py_object(object, &view) != 0) throw py::error_already_set();
  check_ndim(view.ndim);
  t.data = static_cast<char*>(view.data) + view.byte_offset;
  t.ndim = view.ndim;
  t.shape = view.shape;
  t.strides = view.strides;
  t.dtype = from_dlpack(view.dtype);
  t.device_type = view.device.type;
  t.device_id = view.device.id;
  check_memory(t);
  return true;
}

void* current_cuda_stream(int device_id) {
  const Torch& torch = torch_once();
  if (torch.api) {
    void* stream = nullptr;
    if (torch.api->current_work_stream(dlpack::kCUDA, device_id, &stream) != 0) throw py::error_already_set();
    return stream;
  }
  if (!torch.raw_stream) throw std::runtime_error("this torch has no CUDA: there is no current stream");
  return reinterpret_cast<void*>(py::handle(torch.raw_stream)(device_id).cast<uintptr_t>());
}

const char* tensor_access() { return torch_once().api ? "dlpack" : "attributes"; }

}  // namespace inferx
