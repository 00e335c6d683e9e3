// Launching kernels, from host code.
#pragma once
#include "simt/platform.h"

#ifdef SIMT_CPU
#include <tuple>
#include <type_traits>
#endif

namespace simt {

#ifdef SIMT_GPU

// kernel<<<grid, block, shared_bytes, stream>>>(args...).  Returns a cudaError_t, 0 for success.  `stream` is
// a cudaStream_t.  More than 48 KiB of dynamic shared memory are asked for.
template <class... P, class... A>
int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void* stream, A&&... args) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // not to be found again by the next launch
      return static_cast<int>(error);
    }
  }
  kernel<<<grid, block, shared_bytes, static_cast<cudaStream_t>(stream)>>>(static_cast<P>(args)...);
  return static_cast<int>(cudaGetLastError());
}

// Multiprocessors of the current device; in the executor what the test has configured.
inline int num_sms() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

#else

namespace host {

struct Launch {
  void (*body)(const void* arguments);  // one CUDA thread
  const void* arguments;
  size_t arguments_bytes;  // of the object behind `arguments`
  size_t parameter_bytes;  // as nvcc would lay them out
  const void* kernel;
  dim3 grid, block;
  size_t shared_bytes;
};
int run(const Launch& launch);
int num_sms();

}  // namespace host

template <class... P, class... A>
int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void* /*stream*/, A&&... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> args;
  };
  const Call call{kernel, {static_cast<P>(args)...}};
  size_t parameter_bytes = 0;
  ((parameter_bytes = (parameter_bytes + alignof(P) - 1) / alignof(P) * alignof(P) + sizeof(P)), ...);
  return host::run({[](const void* c) {
                      const Call& call = *static_cast<const Call*>(c);
                      std::apply(call.kernel, call.args);
                    },
                    &call, sizeof call, parameter_bytes, reinterpret_cast<const void*>(kernel), grid, block,
                    shared_bytes});
}

inline int num_sms() { return host::num_sms(); }

#endif

}  // namespace simt
