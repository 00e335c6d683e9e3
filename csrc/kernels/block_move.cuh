// What the kernels that move blocks share: a block is cut into vectors of the widest access that everything
// is aligned to, and into parts, one for a CTA.
#pragma once
#include "block_layout.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/fast_div.h"
#include "kernels/packed.cuh"

namespace inferx::cuda {

constexpr int kMoveThreads = 256;
constexpr int kMoveUnroll = 4;  // loads in flight per thread: 16 KB per CTA, enough to cover the latency

// A block in vectors.
struct BlockVectors {
  FastDiv run, inner;  // vectors of a run, runs of an outer step
  uint32_t total, parts;
};

// Bits of everything that has to be aligned.
inline uint64_t alignment_bits(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
inline uint64_t alignment_bits(const BlockShape& shape, const BlockSteps& steps) {
  uint64_t bits = static_cast<uint64_t>(shape.run_bytes) | static_cast<uint64_t>(steps.block);
  if (shape.outer > 1) bits |= static_cast<uint64_t>(steps.outer);
  if (shape.inner > 1) bits |= static_cast<uint64_t>(steps.inner);
  return bits;
}

// body(std::integral_constant<int, bytes>, vectors) with the widest access that `bits` allows.
template <class Body>
Error dispatch_vectors(const BlockShape& shape, uint64_t bits, const Body& body) {
  const auto go = [&](auto width) -> Error {
    constexpr int kBytes = decltype(width)::value;
    const int64_t total = shape.bytes() / kBytes;
    if (total > INT32_MAX) return kInvalidValue;
    constexpr int kPart = kMoveThreads * kMoveUnroll;
    return body(width, BlockVectors{FastDiv(static_cast<uint32_t>(shape.run_bytes / kBytes)),
                                    FastDiv(static_cast<uint32_t>(shape.inner)), static_cast<uint32_t>(total),
                                    static_cast<uint32_t>((total + kPart - 1) / kPart)});
  };
  if (bits % 16 == 0) return go(std::integral_constant<int, 16>{});
  if (bits % 8 == 0) return go(std::integral_constant<int, 8>{});
  if (bits % 4 == 0) return go(std::integral_constant<int, 4>{});
  if (bits % 2 == 0) return go(std::integral_constant<int, 2>{});
  return go(std::integral_constant<int, 1>{});
}

// CTAs x: the parts of block after block; which of the blocks and parts this CTA has.
struct BlockPart {
  int64_t block;
  uint32_t part;
};
SIMT_DEV BlockPart block_part(const BlockVectors& v) {
  const uint32_t block = blockIdx.x / v.parts;
  return {block, blockIdx.x - block * v.parts};
}
inline bool move_grid(int64_t blocks, int64_t tensors, const BlockVectors& v, dim3* grid) {
  *grid = dim3(static_cast<unsigned>(blocks * v.parts), static_cast<unsigned>(tensors));
  return blocks <= INT32_MAX / v.parts && tensors <= 65535;
}

// Moves one part; without `from` it is filled with zeros.
template <int kBytes>
SIMT_DEV void move_part(const BlockVectors& v, uint32_t part, const char* from, const BlockSteps& from_steps,
                        char* to, const BlockSteps& to_steps) {
  using Vector = Packed<uint8_t, kBytes>;
  const uint32_t first = part * (kMoveThreads * kMoveUnroll) + threadIdx.x;
  Vector values[kMoveUnroll];
  int64_t targets[kMoveUnroll];
#pragma unroll
  for (int i = 0; i < kMoveUnroll; ++i) {
    const uint32_t at = first + i * kMoveThreads;
    const uint32_t run = v.run.quotient(at), outer = v.inner.quotient(run);
    const int64_t inner = run - outer * v.inner.divisor();
    const int64_t in_run = static_cast<int64_t>(at - run * v.run.divisor()) * kBytes;
    targets[i] = outer * to_steps.outer + inner * to_steps.inner + in_run;
    values[i] = Vector{};
    if (at < v.total && from != nullptr) {
      const int64_t source = outer * from_steps.outer + inner * from_steps.inner + in_run;
      values[i] = load_packed<kBytes>(reinterpret_cast<const uint8_t*>(from + source));
    }
  }
#pragma unroll
  for (int i = 0; i < kMoveUnroll; ++i) {
    if (first + i * kMoveThreads < v.total) {
      store_packed(reinterpret_cast<uint8_t*>(to + targets[i]), values[i]);
    }
  }
}

}  // namespace inferx::cuda
