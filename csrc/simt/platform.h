// One source, two builds.  Under nvcc (SIMT_GPU) the functions of this folder are single PTX instructions;
// in the executor's build (SIMT_CPU) their bodies are in host/.  Kernels include simt.h, not this file.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#define SIMT_GPU 1
// Device functions: every wrapper, and helpers of kernels.
#define SIMT_DEV __device__ __forceinline__
// The caller's line, as the last parameter of a helper and when it is passed on.  Nothing here.
#define SIMT_AT
#define SIMT_ATP
#define SIMT_PASS
#define SIMT_HERE
// Instructions of sm_90a (wgmma, bulk tensor copies, setmaxnreg), in the host pass and for that target only.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SIMT_SM90A 1
#endif

#else

#include <vector_functions.h>
#include <vector_types.h>

#include "simt/host/site.h"

#define SIMT_CPU 1
#define SIMT_SM90A 1
#define SIMT_DEV inline
// Every wrapper takes the line of its call, so that an error names the kernel's line:
//   inline void __syncthreads(SIMT_AT) { host::barrier(at); }
// A kernel's helper does the same, in both builds: declare SIMT_ATP after its last parameter and hand on
// SIMT_PASS after the last argument of what it calls:
//   SIMT_DEV float row_sum(float x SIMT_ATP) { return warp_sum(x SIMT_PASS); }
#define SIMT_AT ::simt::Site at = {__builtin_FILE(), __builtin_LINE()}
#define SIMT_ATP , SIMT_AT
#define SIMT_PASS , at
#define SIMT_HERE at

// The CUDA headers define these for other compilers in ways that do not fit.
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __shared__
#undef __constant__
#undef __align__
#undef __managed__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "shared memory is declared with SHARED(T, name, dims) or DYN_SHARED");
// For what the checked build must not report to the executor as an access of the kernel.
#define SIMT_UNCHECKED __attribute__((no_sanitize("thread"), noinline))

#endif

namespace simt {

// Both builds: a helper for host and device code.
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace simt
