// What joins the partial results of splits, for combine.cu and latent attention.
#pragma once
#include "kernels/attention/softmax.cuh"
#include "kernels/attention/work.cuh"
#include "kernels/dtype_dispatch.h"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;

constexpr int kCombineWarps = 4;
constexpr int kCombineColumns = 32;  // of a warp, one a lane: many splits can be on their way at once
constexpr int kCombineBatch = 32;    // splits read at once: 4 KiB a warp; a lane finds the weights of one

// A warp takes 32 columns of a row.  Splits are joined in order, with the arithmetic of a CTA that takes them
// all (decode_kernel.cuh); only the maxima, whose order does not matter, are found beforehand.
//
// rows: (query, head) of one request, at most; width: floats of a row of p.partial_out; dim: elements of one
// of p.out; groups: tasks of a row.
template <class T, class Params>
SIMT_DEV void combine_splits(const Params& p, int rows, int64_t width, int64_t dim, int groups) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kCombineWarps + threadIdx.x / 32;
  const int64_t b = task / groups / rows;
  const int row = static_cast<int>(task / groups % rows), lane = lane_id(),
            heads = static_cast<int>(p.num_heads);
  const int column = static_cast<int>(task % groups) * kCombineColumns + lane;
  if (b >= p.batch || p.plan[b] < 0) return;  // whole warps
  const DecodeRequest d = load_decode_request(p, b);
  const int64_t stride = static_cast<int64_t>(d.request.q_len) * heads;
  if (row >= stride) return;
  const int64_t first = p.plan[b] + row;
  const bool exists = column < dim;

  float max = -INFINITY, sum = 0, out = 0;
  for (int s0 = 0; s0 < d.splits; s0 += kCombineBatch) {
    const int count = min(d.splits - s0, kCombineBatch);
    const float* from = p.partial_out + (first + s0 * stride) * width + column;
    float part[kCombineBatch];
#pragma unroll
    for (int i = 0; i < kCombineBatch; ++i) {
      part[i] = exists && i < count ? *from : 0.0f;
      from += stride * width;
    }
    float split_max = -INFINITY, split_sum = 0;
    if (lane < count) {
      const float* max_sum = p.partial_max_sum + (first + (s0 + lane) * stride) * 2;
      split_max = max_sum[0];
      split_sum = max_sum[1];
    }
    float up_to = fmaxf(max, split_max);  // the maximum up to this lane's split
#pragma unroll
    for (int o = 1; o < kCombineBatch; o *= 2) {
      const float other = __shfl_up_sync(~0u, up_to, o);
      if (lane >= o) up_to = fmaxf(up_to, other);
    }
    const float before = __shfl_up_sync(~0u, up_to, 1);
    const JoinWeights own = join_weights(lane == 0 ? max : before, split_max);
#pragma unroll
    for (int i = 0; i < kCombineBatch; ++i) {
      if (i >= count) break;
      const JoinWeights weights{0, __shfl_sync(~0u, own.a, i), __shfl_sync(~0u, own.b, i)};
      sum = join(sum, __shfl_sync(~0u, split_sum, i), weights);
      out = join(out, part[i], weights);
    }
    max = __shfl_sync(~0u, up_to, kCombineBatch - 1);
  }

  const int query = row / heads, head = row % heads;
  const int64_t token = d.request.first_token + query, kv_head = head / p.group;
  const RowEnd end = finish_row(max, sum, p.sinks == nullptr ? -INFINITY : p.sinks[head],
                                p.v_scale == nullptr ? 1.0f : p.v_scale[kv_head * p.v_scale_stride]);
  if (p.lse != nullptr && column == 0) p.lse[token * p.lse_stride_token + head * p.lse_stride_head] = end.lse;
  if (exists) {
    static_cast<T*>(p.out)[token * p.out_stride_token + head * p.out_stride_head + column] =
        from_float<T>(out * end.factor);
  }
}

// CTAs for so many tasks.
inline unsigned combine_ctas(int64_t tasks) {
  return static_cast<unsigned>((tasks + kCombineWarps - 1) / kCombineWarps);
}

}  // namespace inferx::cuda
