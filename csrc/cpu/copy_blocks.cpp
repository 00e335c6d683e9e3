#include "cpu/copy_blocks.h"

#include <cstring>

#include "cpu/parallel.h"

namespace inferx::cpu {
namespace {

void copy_block(const BlockLayout& cache, int64_t source, int64_t destination) {
  const char* from = cache.base + source * cache.block_stride;
  char* to = cache.base + destination * cache.block_stride;
  for (int64_t chunk = 0; chunk < cache.chunks; ++chunk) {
    std::memcpy(to + chunk * cache.chunk_stride, from + chunk * cache.chunk_stride, cache.chunk_bytes);
  }
}

}  // namespace

void copy_blocks(const CopyBlocksParams& p) {
  if (p.num_caches == 0) return;
  constexpr int64_t kBytesPerThread = 1 << 17;
  const int64_t block_bytes = p.caches[0].chunks * p.caches[0].chunk_bytes;
  parallel_for(p.num_caches * p.num_pairs, kBytesPerThread / (block_bytes + 1) + 1,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t* pair = p.pairs + i % p.num_pairs * 2;
                   copy_block(p.caches[i / p.num_pairs], pair[0], pair[1]);
                 }
               });
}

}  // namespace inferx::cpu
