// How KV cache tensors hold their blocks, in bytes; shared by the CPU and the CUDA ops that move blocks.
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

// A block as two tensors hold it alike: outer x inner runs of run_bytes, sizes of 1 where it has fewer
// dimensions ...
struct BlockShape {
  int64_t outer, inner, run_bytes;
  int64_t bytes() const { return outer * inner * run_bytes; }
};

// ... and where one of the two has them, from its start.
struct BlockSteps {
  int64_t block, outer, inner;
};

// A cache whose blocks move to and from a buffer of dense blocks, [n, *block].
struct BufferedCache {
  char* base;
  BlockShape shape;
  BlockSteps steps, buffer_steps;
};

}  // namespace inferx
