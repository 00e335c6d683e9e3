// threadIdx, blockIdx, blockDim, gridDim, and the lane.
#pragma once
#include "simt/platform.h"

#ifdef SIMT_CPU
namespace simt::host {
// A CUDA thread never sees them change, so the compiler may keep them.
uint3 thread_idx() __attribute__((const));
uint3 block_idx() __attribute__((const));
dim3 block_dim() __attribute__((const));
dim3 grid_dim() __attribute__((const));
int lane() __attribute__((const));
}  // namespace simt::host
#define threadIdx (::simt::host::thread_idx())
#define blockIdx (::simt::host::block_idx())
#define blockDim (::simt::host::block_dim())
#define gridDim (::simt::host::grid_dim())
constexpr int warpSize = 32;
#endif

namespace simt {

#ifdef SIMT_GPU
SIMT_DEV int lane_id() {
  int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
#else
inline int lane_id() { return host::lane(); }
#endif

}  // namespace simt
