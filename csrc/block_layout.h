// How one KV cache tensor holds its blocks, in bytes; shared by the CPU and the CUDA block copy.
#pragma once
#include <cstdint>

namespace inferx {

// Block b is `chunks` runs of `chunk_bytes`, `chunk_stride` apart, the first at base + b * block_stride.  A
// cache whose blocks are dense has one chunk; one laid out head-major over the whole pool has one per head.
struct BlockLayout {
  char* base;
  int64_t num_blocks;
  int64_t block_stride;
  int64_t chunks, chunk_stride, chunk_bytes;
};

}  // namespace inferx
