#include <cuda_runtime.h>

#include "kernels/launch.h"

namespace inferx::cuda {

const char* error_string(Error error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

Error device_count(int* count) {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error != cudaSuccess) cudaGetLastError();  // not to be found again by the next launch
  return error;
}

}  // namespace inferx::cuda
