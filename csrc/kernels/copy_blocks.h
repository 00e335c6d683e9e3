// Copies KV cache blocks on the GPU: one launch for all layers and all pairs.
#pragma once
#include <cstdint>

#include "kernels/launch.h"

namespace inferx::cuda {

constexpr int kMaxCopyTensors = 256;  // K and V of 128 layers; keeps the parameters under the classic 4 KB

// Every tensor has the same layout (see block_layout.h), all sizes in bytes.
struct CopyBlocksParams {
  char* bases[kMaxCopyTensors];
  int num_tensors;
  int64_t num_blocks;
  int64_t block_stride;
  int64_t chunks, chunk_stride, chunk_bytes;
  // On the device: num_pairs times (source, destination).  Pairs outside [0, num_blocks) are skipped, since
  // the host cannot look at them; no destination may occur twice or be a source.
  const int64_t* pairs;
  int64_t num_pairs;
};

// The widest access, 16, 8, 4, 2 or 1 bytes, that all addresses of a copy are aligned to.
int copy_blocks_vector_bytes(const CopyBlocksParams& params);

// stream is a cudaStream_t.
Error launch_copy_blocks(const CopyBlocksParams& params, int device, void* stream);

}  // namespace inferx::cuda
