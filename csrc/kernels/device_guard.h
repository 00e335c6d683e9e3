// Makes a device current for one launch.  The static runtime keeps its own notion of the current device,
// apart from torch's, so every launcher sets it.
#pragma once
#include <cuda_runtime.h>

namespace inferx::cuda {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != device) {
      error_ = cudaSetDevice(device);
      changed_ = error_ == cudaSuccess;
    }
    if (error_ != cudaSuccess) cudaGetLastError();
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

}  // namespace inferx::cuda
