// A warp per token, its experts in the lanes' registers.  Bound by latency: a row is a few hundred bytes, and
// each choice is a reduction over the warp that the next one waits for.
//
// Experts are compared by integer keys and sums over all of them are integer sums, so neither the layout over
// lanes nor the order of a reduction can change a result: the CPU's bits come out (csrc/moe_routing_math.h).
#include <algorithm>

#include "kernels/dtype_dispatch.h"
#include "kernels/fast_div.h"
#include "kernels/moe_routing.h"
#include "kernels/packed.cuh"
#include "moe_routing_math.h"

namespace inferx::cuda {
namespace {

using namespace simt;
using moe::kNoKey;
using moe::RoutingParams;
using moe::Scoring;

constexpr int kThreads = 128;  // tokens are independent: small CTAs spread few tokens over more SMs
constexpr int kWarps = kThreads / 32;

// A row's experts over the lanes of a warp: each lane holds vectors of neighbours, so that a warp's load is
// one contiguous piece of the row.
template <class T, int kValues>
struct Layout {
  static constexpr int kVector = std::min(kValues, static_cast<int>(16 / sizeof(T)));

  // The expert of a lane's value i; it rises with i.
  SIMT_DEV static int expert(int i) {
    return (i / kVector * 32 + static_cast<int>(threadIdx.x % 32)) * kVector + i % kVector;
  }
  SIMT_DEV static void load(float (&x)[kValues], const T* logits, int experts, bool aligned) {
#pragma unroll
    for (int i = 0; i < kValues; i += kVector) {
      const int first = expert(i);
      if (aligned && first + kVector <= experts) {
        const Packed<T, kVector> values = load_packed<kVector>(logits + first);
#pragma unroll
        for (int v = 0; v < kVector; ++v) x[i + v] = to_float(values.at[v]);
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          x[i + v] = first + v < experts ? to_float(logits[first + v]) : -HUGE_VALF;
        }
      }
    }
  }
};

template <int kValues>
SIMT_DEV unsigned largest(const unsigned (&keys)[kValues]) {
  unsigned best = keys[0];
#pragma unroll
  for (int i = 1; i < kValues; ++i) best = max(best, keys[i]);
  return best;
}

// The warp's sum of `total`, which is below 2^47: two halves whose sums fit 32 bits.
SIMT_DEV int64_t sum_over_warp(int64_t total) {
  const unsigned low = __reduce_add_sync(~0u, static_cast<unsigned>(total) & 0xffffffu);
  const unsigned high = __reduce_add_sync(~0u, static_cast<unsigned>(total >> 24));
  return (static_cast<int64_t>(high) << 24) + low;
}

// Sets the keys of experts outside of the best groups to kNoKey; of equal groups the first are kept.
template <class L, int kValues>
SIMT_DEV void drop_groups(unsigned (&keys)[kValues], const RoutingParams& p, const FastDiv& group_size) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int group[kValues];  // at or above p.groups past the last expert
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    group[i] = static_cast<int>(group_size.quotient(static_cast<uint32_t>(L::expert(i))));
  }
  unsigned score = kNoKey;  // of the group of this lane's number
  for (int g = 0; g < p.groups; ++g) {
    unsigned best = kNoKey, second = kNoKey;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const unsigned key = group[i] == g ? keys[i] : kNoKey;
      second = max(second, min(best, key));
      best = max(best, key);
    }
    unsigned of_group = __reduce_max_sync(~0u, best);
    if (p.bias != nullptr) {
      // The second best is the owner's second or the best of another lane.
      const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, best == of_group))) - 1;
      of_group = moe::group_key(of_group, __reduce_max_sync(~0u, lane == owner ? second : best));
    }
    if (lane == g) score = of_group;
  }
  unsigned chosen = 0;
  for (int i = 0; i < p.top_groups; ++i) {
    const unsigned best = __reduce_max_sync(~0u, score);
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, score == best))) - 1;
    chosen |= 1u << owner;
    if (lane == owner) score = kNoKey;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) keys[i] = chosen >> (group[i] & 31) & 1u ? keys[i] : kNoKey;
}

// Lane j returns the expert of place j: by falling keys, equal ones by rising id.
template <class L, int kValues>
SIMT_DEV int choose(unsigned (&keys)[kValues], int top_k) {
  int mine = 0;
  for (int j = 0; j < top_k; ++j) {
    const unsigned own = largest(keys);
    int expert = 0;
#pragma unroll
    for (int i = kValues - 1; i >= 0; --i) expert = keys[i] == own ? L::expert(i) : expert;
    const unsigned best = __reduce_max_sync(~0u, own);
    const unsigned winner = __reduce_min_sync(~0u, own == best ? static_cast<unsigned>(expert) : 0xffffffffu);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      keys[i] = L::expert(i) == static_cast<int>(winner) ? kNoKey : keys[i];
    }
    if (static_cast<int>(threadIdx.x % 32) == j) mine = static_cast<int>(winner);
  }
  return mine;
}

template <class T, int kValues>
__global__ void __launch_bounds__(kThreads)
    moe_routing_kernel(const __grid_constant__ RoutingParams p, FastDiv group_size, bool aligned) {
  using L = Layout<T, kValues>;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= p.tokens) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x % 32);
  const T* logits = static_cast<const T*>(p.logits) + token * p.row_stride;
  float x[kValues];
  L::load(x, logits, p.experts, aligned);

  unsigned keys[kValues];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    keys[i] = moe::choice_key(x[i]);
    nan |= x[i] != x[i];
  }
  nan = __any_sync(~0u, nan);
  const float top = sampling::value_of(__reduce_max_sync(~0u, largest(keys)));

  float denominator = 1.0f;
  if (p.scoring == Scoring::softmax && (p.bias != nullptr || !p.renormalize)) {
    int64_t total = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int64_t weight = sampling::weight_of(moe::below_max(x[i], top));
      total += L::expert(i) < p.experts ? weight : 0;
    }
    denominator = moe::denominator_of(sum_over_warp(total));
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (L::expert(i) >= p.experts) {
      keys[i] = kNoKey;
    } else if (p.bias != nullptr) {
      keys[i] = moe::biased_key(p.scoring, x[i], top, denominator, p.bias[L::expert(i)]);
    }
  }
  if (p.top_groups < p.groups) drop_groups<L>(keys, p, group_size);
  const int expert = choose<L>(keys, p.top_k);

  // The chosen logits are read once more: which lane's registers hold them is known too late.
  float weight = 0.0f;
  if (lane < p.top_k) weight = moe::undivided_weight(p.scoring, to_float(logits[expert]), top);
  float divisor = denominator;
  if (p.renormalize) {
    divisor = 0.0f;
    for (int j = 0; j < p.top_k; ++j) divisor += __shfl_sync(~0u, weight, j);
  }
  if (lane < p.top_k) {
    p.weights[token * p.top_k + lane] = moe::final_weight(weight, divisor, p.scale, nan);
    p.ids[token * p.top_k + lane] = expert;
  }
}

template <class T, int kValues>
Error launch_values(const RoutingParams& p, void* stream) {
  constexpr size_t kBytes = Layout<T, kValues>::kVector * sizeof(T);
  const uintptr_t bits = reinterpret_cast<uintptr_t>(p.logits) |
                         (p.tokens > 1 ? static_cast<uintptr_t>(p.row_stride) * sizeof(T) : 0);
  const dim3 grid(static_cast<unsigned>((p.tokens + kWarps - 1) / kWarps));
  const FastDiv group_size(static_cast<uint32_t>(p.experts / p.groups));
  return launch(moe_routing_kernel<T, kValues>, grid, dim3(kThreads), 0, stream, p, group_size,
                bits % kBytes == 0);
}

}  // namespace

Error launch_moe_routing(const RoutingParams& p, void* stream) {
  if (p.tokens == 0) return kSuccess;
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    if (p.experts <= 32) return launch_values<T, 1>(p, stream);
    if (p.experts <= 64) return launch_values<T, 2>(p, stream);
    if (p.experts <= 128) return launch_values<T, 4>(p, stream);
    if (p.experts <= 256) return launch_values<T, 8>(p, stream);
    if (p.experts <= moe::kMaxExperts) return launch_values<T, 16>(p, stream);
    return kInvalidValue;
  });
}

}  // namespace inferx::cuda
