#include "kernels/attention/combine.h"
#include "kernels/attention/softmax.cuh"
#include "kernels/attention/work.cuh"
#include "kernels/dtype_dispatch.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = 32;  // of a warp: a lane each, so that many splits can be on their way at once
constexpr int kBatch = 32;    // splits read at once: 4 KiB a warp; a lane finds the weights of one

// Rows (query, head) of one request, at most.
int64_t max_rows(const PagedAttentionParams& p) {
  const int64_t group = p.num_heads / p.num_kv_heads, queries = decode_rows(group) / group;
  return (p.max_query_len < queries ? p.max_query_len : queries) * p.num_heads;
}

// A warp takes 32 columns of a row.  Splits are joined in order, with the arithmetic of a CTA that takes them
// all (decode_kernel.cuh); only the maxima, whose order does not matter, are found beforehand.
template <class T>
__global__ void __launch_bounds__(kThreads)
    combine_splits_kernel(const __grid_constant__ PagedAttentionParams p, int rows, int groups) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t b = task / groups / rows;
  const int row = static_cast<int>(task / groups % rows), lane = lane_id(),
            heads = static_cast<int>(p.num_heads);
  const int column = static_cast<int>(task % groups) * kColumns + lane;
  if (b >= p.batch || p.plan[b] < 0) return;  // whole warps
  const DecodeRequest d = load_decode_request(p, b);
  const int64_t stride = static_cast<int64_t>(d.request.q_len) * heads;
  if (row >= stride) return;
  const int64_t first = p.plan[b] + row, width = padded_head_dim(p.head_dim);
  const bool exists = column < p.head_dim;

  float max = -INFINITY, sum = 0, out = 0;
  for (int s0 = 0; s0 < d.splits; s0 += kBatch) {
    const int count = min(d.splits - s0, kBatch);
    const float* from = p.partial_out + (first + s0 * stride) * width + column;
    float part[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
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
    for (int o = 1; o < kBatch; o *= 2) {
      const float other = __shfl_up_sync(~0u, up_to, o);
      if (lane >= o) up_to = fmaxf(up_to, other);
    }
    const float before = __shfl_up_sync(~0u, up_to, 1);
    const JoinWeights own = join_weights(lane == 0 ? max : before, split_max);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= count) break;
      const JoinWeights weights{0, __shfl_sync(~0u, own.a, i), __shfl_sync(~0u, own.b, i)};
      sum = join(sum, __shfl_sync(~0u, split_sum, i), weights);
      out = join(out, part[i], weights);
    }
    max = __shfl_sync(~0u, up_to, kBatch - 1);
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

template <class T>
Error go(const PagedAttentionParams& p, void* stream) {
  const int64_t rows = max_rows(p), groups = (p.head_dim + kColumns - 1) / kColumns;
  const int64_t ctas = (p.batch * rows * groups + kWarps - 1) / kWarps;
  return launch(combine_splits_kernel<T>, dim3(static_cast<unsigned>(ctas)), dim3(kThreads), 0, stream, p,
                static_cast<int>(rows), static_cast<int>(groups));
}

}  // namespace

Error launch_combine_splits(const PagedAttentionParams& p, void* stream) {
  if (max_rows(p) == 0) return kSuccess;
  return p.dtype == DType::bf16 ? go<__nv_bfloat16>(p, stream) : go<__half>(p, stream);
}

}  // namespace inferx::cuda
