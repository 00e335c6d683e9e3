// Which instructions the architecture being compiled for has.
#pragma once
#include "simt/platform.h"

// 800, 890, 900 ... in device code; what nvcc's host pass parses is never run; 0 in the executor's build,
// where each wrapper has a body for it.
#if defined(SIMT_CPU)
#define SIMT_ARCH 0
#elif defined(__CUDA_ARCH__)
#define SIMT_ARCH __CUDA_ARCH__
#else
#define SIMT_ARCH 9999
#endif

namespace simt {

#ifdef SIMT_GPU
// The body of an instruction that this architecture lacks: kernels with it compile everywhere and are to be
// launched only where it exists.
SIMT_DEV void unsupported_arch() { __trap(); }
#endif

}  // namespace simt
