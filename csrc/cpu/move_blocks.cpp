#include "cpu/move_blocks.h"

#include <cstring>

#include "cpu/parallel.h"

namespace inferx::cpu {
namespace {

constexpr int64_t kBytesPerThread = 1 << 17;

void move_block(const BlockShape& shape, const char* from, const BlockSteps& from_steps, char* to,
                const BlockSteps& to_steps) {
  for (int64_t o = 0; o < shape.outer; ++o) {
    for (int64_t i = 0; i < shape.inner; ++i) {
      std::memcpy(to + o * to_steps.outer + i * to_steps.inner,
                  from + o * from_steps.outer + i * from_steps.inner, static_cast<size_t>(shape.run_bytes));
    }
  }
}

// body(cache, block of the cache, its place in the buffer) for all blocks.
template <class Body>
void for_each_block(const GatherBlocksParams& p, const Body& body) {
  if (p.num_caches == 0) return;
  const int64_t bytes = p.caches[0].shape.bytes();
  parallel_for(p.num_caches * p.num_ids, kBytesPerThread / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      body(p.caches[i / p.num_ids], p.ids[i % p.num_ids], p.buffer + i * bytes);
    }
  });
}

}  // namespace

void swap_blocks(const SwapBlocksParams& p) {
  parallel_for(p.num_pairs, kBytesPerThread / (p.shape.bytes() + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      move_block(p.shape, p.from + p.pairs[2 * i] * p.from_steps.block, p.from_steps,
                 p.to + p.pairs[2 * i + 1] * p.to_steps.block, p.to_steps);
    }
  });
}

void gather_blocks(const GatherBlocksParams& p) {
  for_each_block(p, [](const BufferedCache& cache, int64_t id, char* place) {
    if (id < 0) {
      std::memset(place, 0, static_cast<size_t>(cache.shape.bytes()));
    } else {
      move_block(cache.shape, cache.base + id * cache.steps.block, cache.steps, place, cache.buffer_steps);
    }
  });
}

void scatter_blocks(const GatherBlocksParams& p) {
  for_each_block(p, [](const BufferedCache& cache, int64_t id, char* place) {
    if (id < 0) return;
    move_block(cache.shape, place, cache.buffer_steps, cache.base + id * cache.steps.block, cache.steps);
  });
}

}  // namespace inferx::cpu
