#include <cuda_runtime.h>

#include "kernels/memory_copy.h"

namespace inferx::cuda {

Error copy_rows(char* to, int64_t to_pitch, const char* from, int64_t from_pitch, int64_t width,
                int64_t height, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  const auto bytes = static_cast<size_t>(width);
  if (height == 1 || (to_pitch == width && from_pitch == width)) {
    return cudaMemcpyAsync(to, from, bytes * static_cast<size_t>(height), cudaMemcpyDefault, s);
  }
  if (to_pitch <= INT32_MAX && from_pitch <= INT32_MAX) {  // the largest pitch that the driver takes
    return cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch), bytes,
                             static_cast<size_t>(height), cudaMemcpyDefault, s);
  }
  for (int64_t i = 0; i < height; ++i) {
    const cudaError_t error =
        cudaMemcpyAsync(to + i * to_pitch, from + i * from_pitch, bytes, cudaMemcpyDefault, s);
    if (error != cudaSuccess) return error;
  }
  return kSuccess;
}

bool device_can_reach(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
    cudaGetLastError();  // not to be found again by the next launch
    return false;
  }
  return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == host;
}

}  // namespace inferx::cuda
