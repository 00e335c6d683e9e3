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
  uses_.push_back({name, &tensor, written});
  return *this;
}

#ifdef INFERX_SIMT

void DeviceCall::run(const std::function<cuda::Error(void* stream)>& launch) {
  std::vector<simt::host::View> views;
  views.reserve(uses_.size());
  for (const Use& use : uses_) {
    const TensorRef& t = *use.tensor;
    views.push_back({use.name, t.data, t.ndim, t.shape, t.strides, dtype_size(t.dtype), use.written});
  }
  cuda::Error error = cuda::kSuccess;
  std::string report;
  {
    py::gil_scoped_release nogil;
    report = simt::host::run_session(views, [&] { return launch(nullptr); }, &error);
  }
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
