// All a kernel needs: CUDA as nvcc knows it, and one small function per further instruction, by hardware
// feature. Kernels include this header alone and open `using namespace simt;`.  CUDA's own names (threadIdx,
// __syncthreads, __shfl_xor_sync, atomicAdd, ...) are global in both builds.  Rules for kernels: README.md.
#pragma once
#include "simt/platform.h"
// types and functions of one thread
#include "simt/fast_math.h"
#include "simt/fp8.h"
#include "simt/indices.h"
#include "simt/intrinsics.h"
#include "simt/types.h"
#include "simt/vector_access.h"
// threads together
#include "simt/atomics.h"
#include "simt/barrier.h"
#include "simt/shared.h"
#include "simt/warp.h"
// asynchronous copies and tensor cores
#include "simt/bulk_copy.h"
#include "simt/cp_async.h"
#include "simt/ldmatrix.h"
#include "simt/mbarrier.h"
#include "simt/mma.h"
#include "simt/tma.h"
#include "simt/wgmma.h"
// host code
#include "simt/launch.h"

using namespace simt;  // NOLINT: kernels' headers use the names as they use CUDA's
