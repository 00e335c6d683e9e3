// The swizzles of shared memory that tensor copies and wgmma know: 16-byte chunks change places within spans
// of 32, 64 or 128 bytes, so that eight rows at one column lie in different banks.
#pragma once
#include "simt/platform.h"

namespace simt {

enum class Swizzle : int { none = 0, b32 = 1, b64 = 2, b128 = 3 };  // numbered as CUtensorMapSwizzle

// Bytes of a span; also the longest row of a swizzled tile.  none: one chunk.
__host__ __device__ constexpr int swizzle_bytes(Swizzle s) { return 16 << static_cast<int>(s); }
// Bytes after which the pattern repeats: how tiles are to be aligned.
__host__ __device__ constexpr int swizzle_align(Swizzle s) {
  return s == Swizzle::none ? 16 : 8 * swizzle_bytes(s);
}

// Where the byte goes that stands at `offset` of a tile without swizzle: address bits 4.. change by bits 7..
// .
template <Swizzle S>
__host__ __device__ constexpr uint32_t swizzled(uint32_t offset) {
  return offset ^ ((offset >> 7 & ((1u << static_cast<int>(S)) - 1)) << 4);
}

}  // namespace simt
