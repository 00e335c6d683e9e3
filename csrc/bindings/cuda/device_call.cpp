#include "bindings/cuda/device_call.h"

#include <stdexcept>
#include <string>

#ifdef INFERX_SIMT
#include "simt/control.h"
#else
#include "kernels/device_guard.h"
#endif

namespace py = pybind11;

namespace inferx {

DeviceCall::DeviceCall(const char* op, const char* name, const TensorRef& tensor)
    : op_(op), first_name_(name), first_(tensor) {
#ifdef INFERX_SIMT
  Arg(op, name, tensor).on_cpu();
#else
  if (!tensor.is_cuda()) Arg(op, name, tensor).expected("a CUDA tensor", device_string(tensor));
#endif
}

DeviceCall& DeviceCall::add(const char* name, const TensorRef& tensor, bool written) {
  Arg(op_, name, tensor).same_device(first_name_, first_);
  uses_.push_back({&tensor, written});
  return *this;
}

#ifdef INFERX_SIMT

namespace {

// From the first byte of a tensor to the end of its last element; strides are not negative.
size_t extent(const TensorRef& t) {
  int64_t last = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.strides[i];
  }
  return static_cast<size_t>(last + 1) * dtype_size(t.dtype);
}

}  // namespace

void DeviceCall::run(const std::function<cuda::Error(void* stream)>& launch) {
  for (const Use& use : uses_) simt_fence(use.tensor->data, extent(*use.tensor), use.written);
  cuda::Error error;
  {
    py::gil_scoped_release nogil;
    error = launch(nullptr);
  }
  simt_unfence();
  const std::string report = simt_error();
  if (!report.empty()) throw std::runtime_error(std::string(op_) + ": SIMT: " + report);
  if (error != cuda::kSuccess)
    throw std::runtime_error(std::string(op_) + ": CUDA error " + std::to_string(error));
}

#else

void DeviceCall::run(const std::function<cuda::Error(void* stream)>& launch) {
  void* stream = current_cuda_stream(first_.device_id);
  cuda::Error error;
  {
    py::gil_scoped_release nogil;
    const cuda::DeviceGuard guard(first_.device_id);
    error = guard.error() != cuda::kSuccess ? guard.error() : launch(stream);
  }
  if (error != cuda::kSuccess) {
    throw std::runtime_error(std::string(op_) + ": CUDA: " + cuda::error_string(error));
  }
}

#endif

}  // namespace inferx
