// A counting sort by one CTA.  Its warps take consecutive pieces of the pairs and count by themselves; where
// an expert's pairs of one warp begin is then a prefix sum over warps and experts, and each warp places its
// own.  Within a warp pairs go 32 at a time, lanes of the same expert in the order of lanes: the sort is
// stable, and nothing depends on who comes first.
//
// One CTA is bound by the latency of its trips: each warp reads kUnroll * 32 ids a trip, in two passes, so
// some 4,096 pairs a trip of the CTA.  A step's few thousand pairs take a trip or two; 65,536 (8,192 tokens
// of 8 experts) take 16 each pass, tens of microseconds beside expert products of milliseconds.
#include "kernels/dtype_dispatch.h"
#include "kernels/moe_align.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;
using moe::AlignParams;

constexpr int kMaxWarps = 32;
constexpr int kUnroll = 4;  // loads under way in a warp

// Calls body(ids, first) for 32 * kUnroll pairs at a time of [begin, end): ids[u] is that of pair
// first + 32 u + lane, -1 where that is none or has no expert here.
template <class Body>
SIMT_DEV void for_each_pair(const AlignParams& p, int64_t begin, int64_t end, const Body& body) {
  for (int64_t first = begin; first < end; first += 32 * kUnroll) {
    int ids[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + 32 * u + threadIdx.x % 32;
      const int id = i < end ? p.topk_ids[i] : -1;
      ids[u] = id >= 0 && id < p.experts ? id : -1;
    }
    body(ids, first);
  }
}

// Adds this warp's pairs to its counters, and calls place(pair, where) with what a pair's counter was, pairs
// of the same expert in their order.
template <class Place>
SIMT_DEV void count_pairs(const AlignParams& p, int64_t begin, int64_t end, int* counters,
                          const Place& place) {
  const unsigned lane = threadIdx.x % 32;
  for_each_pair(p, begin, end, [&](const int (&ids)[kUnroll], int64_t first) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned peers = __match_any_sync(~0u, ids[u]);
      const int before = __popc(peers & ((1u << lane) - 1u));
      int count = 0;
      if (ids[u] >= 0) {
        count = counters[ids[u]];
        place(static_cast<int>(first + 32 * u + lane), count + before);
      }
      __syncwarp();  // all have read
      if (ids[u] >= 0 && before == 0) counters[ids[u]] = count + __popc(peers);
      __syncwarp();
    }
  });
}

// The sum of `value` over the threads before this one, and over all.
struct Prefix {
  int before, total;
};
SIMT_DEV Prefix prefix_sum(int value, int* warp_sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, sum, static_cast<unsigned>(distance));
    if (lane >= distance) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
    before += w < warp ? warp_sums[w] : 0;
    total += warp_sums[w];
  }
  return {before + sum - value, total};
}

// All of it dynamic: only that may come to more than 48 KiB.
size_t shared_bytes(int counting_warps, int experts) {
  const int counters = counting_warps * experts, begins_and_ends = 2 * experts;
  return static_cast<size_t>(counters + begins_and_ends + kMaxWarps) * sizeof(int);
}

// Threads: a whole number of warps, at least as many threads as experts.
__global__ void __launch_bounds__(32 * kMaxWarps)
    moe_align_kernel(const __grid_constant__ AlignParams p, int counting_warps) {
  DYN_SHARED(dynamic, 16);  // laid out as shared_bytes() says
  int* const counters = reinterpret_cast<int*>(dynamic);
  int* const begins = counters + counting_warps * p.experts;
  int* const ends = begins + p.experts;
  int* const warp_sums = ends + p.experts;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, warps = threads / 32, lane = thread % 32;
  const int pairs = static_cast<int>(p.pairs);
  const int64_t step = ((p.pairs + counting_warps - 1) / counting_warps + 31) / 32 * 32;
  const int64_t first = warp < counting_warps ? min(warp * step, p.pairs) : p.pairs;
  const int64_t last = min(first + step, p.pairs);

  for (int i = thread; i < counting_warps * p.experts; i += threads) counters[i] = 0;
  __syncthreads();
  int* const own = counters + (warp < counting_warps ? warp : 0) * p.experts;
  count_pairs(p, first, last, own, [](int, int) {});
  __syncthreads();

  // A thread per expert.
  int count = 0;
  if (thread < p.experts) {
    for (int w = 0; w < counting_warps; ++w) count += counters[w * p.experts + thread];
  }
  const int blocks = (count + p.block_size - 1) / p.block_size;
  const Prefix place = prefix_sum(blocks, warp_sums);
  if (thread < p.experts) {
    int next = place.before * p.block_size;
    begins[thread] = next;
    ends[thread] = next + count;
    for (int w = 0; w < counting_warps; ++w) {
      const int of_warp = counters[w * p.experts + thread];
      counters[w * p.experts + thread] = next;
      next += of_warp;
    }
  }
  if (thread == 0) *p.num_tokens_post_padded = place.total * p.block_size;
  __syncthreads();

  count_pairs(p, first, last, own, [&](int pair, int where) { p.sorted_token_ids[where] = pair; });
  for (int e = warp; e < p.experts; e += warps) {
    const int begin = begins[e] / p.block_size;
    const int count = ends[e] - begins[e], end = begin + (count + p.block_size - 1) / p.block_size;
    // 64 bits: a step beyond the last place may be a step beyond an int.
    for (int64_t b = begin + lane; b < end; b += 32) p.expert_ids[b] = e;
    for (int64_t i = ends[e] + lane; i < int64_t{end} * p.block_size; i += 32) p.sorted_token_ids[i] = pairs;
  }
  for (int64_t b = place.total + thread; b < p.max_blocks; b += threads) p.expert_ids[b] = -1;
  for (int64_t i = static_cast<int64_t>(place.total) * p.block_size + thread; i < p.max_sorted; i += threads)
    p.sorted_token_ids[i] = pairs;
}

}  // namespace

Error launch_moe_align(const AlignParams& p, void* stream) {
  if (p.experts > moe::kMaxAlignedExperts) return kInvalidValue;
  // A warp counts at least a trip's pairs; more would only have more counters to add up.
  const int64_t trips = (p.pairs + 32 * kUnroll - 1) / (32 * kUnroll);
  const int counting_warps = static_cast<int>(trips < 1 ? 1 : trips < kMaxWarps ? trips : kMaxWarps);
  const int expert_warps = (p.experts + 31) / 32;
  const int warps = counting_warps > expert_warps ? counting_warps : expert_warps;
  return launch(moe_align_kernel, dim3(1), dim3(static_cast<unsigned>(32 * warps)),
                shared_bytes(counting_warps, p.experts), stream, p, counting_warps);
}

}  // namespace inferx::cuda
