// What one CTA does together over a row: walk its elements, reduce, scan, sort.
#pragma once
#include "kernels/dtype_dispatch.h"
#include "kernels/packed.cuh"
#include "sampling_math.h"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;
using namespace sampling;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// A count and a weight, summed side by side.
struct alignas(16) Mass {
  uint32_t count;
  uint64_t weight;
};
SIMT_DEV Mass operator+(Mass a, Mass b) { return {a.count + b.count, a.weight + b.weight}; }

SIMT_DEV Mass shuffle_up(Mass v, int distance) {
  return {__shfl_up_sync(~0u, v.count, distance), __shfl_up_sync(~0u, v.weight, distance)};
}

// body(value, id) for the ids in [begin, end), shared out among `threads` threads of which this is `thread`.
// A thread's ids rise.  16-byte accesses but at the ends, kAhead of them under way at once.
template <int kAhead, class T, class Body>
SIMT_DEV void for_each(const T* x, int begin, int end, int thread, int threads, const Body& body) {
  constexpr int kVector = 16 / sizeof(T);
  const int misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(x + begin) % 16) / sizeof(T);
  const int head = min(begin + (kVector - misaligned) % kVector, end);
  const int tail = head + (end - head) / kVector * kVector;
  if (begin + thread < head) body(to_float(x[begin + thread]), begin + thread);
#pragma unroll kAhead
  for (int i = head + thread * kVector; i < tail; i += threads * kVector) {
    const auto items = load_packed<kVector>(x + i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) body(to_float(items.at[k]), i + k);
  }
  if (tail + thread < end) body(to_float(x[tail + thread]), tail + thread);
}

template <class T, class Op>
SIMT_DEV T warp_reduce(T v, const Op& op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v = op(v, __shfl_xor_sync(~0u, v, offset));
  return v;
}

struct BlockScratch {
  uint64_t weight[kWarps];
  uint32_t count[kWarps];
};

// Of all threads' values; every thread gets it.
template <class Op>
SIMT_DEV uint64_t block_reduce(uint64_t v, const Op& op, BlockScratch& scratch) {
  v = warp_reduce(v, op);
  if (lane_id() == 0) scratch.weight[threadIdx.x / 32] = v;
  __syncthreads();
  v = scratch.weight[0];
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) v = op(v, scratch.weight[w]);
  __syncthreads();
  return v;
}

SIMT_DEV uint64_t block_sum(uint64_t v, BlockScratch& scratch) {
  return block_reduce(v, [](uint64_t a, uint64_t b) { return a + b; }, scratch);
}

// The sum over the threads before this one; `total` is that of all.
SIMT_DEV Mass block_scan(Mass v, BlockScratch& scratch, Mass& total) {
  const int lane = lane_id(), warp = threadIdx.x / 32;
  Mass inclusive = v;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass before = shuffle_up(inclusive, offset);
    if (lane >= offset) inclusive = inclusive + before;
  }
  if (lane == 31) {
    scratch.count[warp] = inclusive.count;
    scratch.weight[warp] = inclusive.weight;
  }
  __syncthreads();
  Mass before{0, 0};
  total = {0, 0};
#pragma unroll 1
  for (int w = 0; w < kWarps; ++w) {
    const Mass sum{scratch.count[w], scratch.weight[w]};
    if (w < warp) before = before + sum;
    total = total + sum;
  }
  __syncthreads();
  return {before.count + inclusive.count - v.count, before.weight + inclusive.weight - v.weight};
}

// Sorts values[0 .. size), size a power of two, upwards (bitonic).  The caller has synchronised before.
SIMT_DEV void block_sort(uint64_t* values, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int t = threadIdx.x; t < size / 2; t += kThreads) {
        const int low = t / step * 2 * step + t % step, high = low + step;
        const bool up = (low & run) == 0;
        const uint64_t a = values[low], b = values[high];
        if ((a > b) == up) {
          values[low] = b;
          values[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

SIMT_DEV int next_power_of_two(int n) {
  int size = 1;
  while (size < n) size *= 2;
  return size;
}

}  // namespace inferx::cuda
