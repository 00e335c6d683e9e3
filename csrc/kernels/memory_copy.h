// Copies by the device's copy engines.  memory_copy.cu is compiled by nvcc only; the builds for the SIMT
// executor, where all memory is the host's, bring their own (bindings/cuda/swap_blocks.cpp).
#pragma once
#include <cstdint>

#include "kernels/launch.h"

namespace inferx::cuda {

// `height` rows of `width` bytes, to_pitch and from_pitch apart, in host or device memory, on a stream.
Error copy_rows(char* to, int64_t to_pitch, const char* from, int64_t from_pitch, int64_t width,
                int64_t height, void* stream);

// Whether kernels on the current device can use this host pointer as it is (pinned, mapped memory).
bool device_can_reach(const void* host);

}  // namespace inferx::cuda
