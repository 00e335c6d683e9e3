// What a binding hands to the attention launchers.  Strides are in elements; last dimensions are contiguous.
#pragma once
#include <cstdint>

#include "dtype.h"
#include "kernels/launch.h"

#ifdef __CUDACC__
#define INFERX_HOST_DEVICE __host__ __device__
#else
#define INFERX_HOST_DEVICE
#endif

namespace inferx::cuda {

struct PagedAttentionParams {
  const void* query;  // [num_tokens, num_heads, head_dim], of `dtype`
  void* out;          // likewise
  float* lse;         // [num_tokens, num_heads] or null
  int64_t query_stride_token, query_stride_head;
  int64_t out_stride_token, out_stride_head;
  int64_t lse_stride_token, lse_stride_head;
  DType dtype;  // f16 or bf16 (tensor cores), or f32

  const void* key_cache;  // [num_blocks, block_size, num_kv_heads, head_dim], of `cache_dtype`
  const void* value_cache;
  int64_t key_stride_block, key_stride_slot, key_stride_head;
  int64_t value_stride_block, value_stride_slot, value_stride_head;
  DType cache_dtype;     // `dtype`, or f8e4m3
  const float* k_scale;  // stored key * scale = key; per KV head (stride 1) or one (stride 0); null: 1
  const float* v_scale;
  int64_t k_scale_stride, v_scale_stride;
  // All rows of the caches begin at multiples of this, 16; or 8, which only an f8e4m3 cache may have.
  int copy_bytes = 16;

  const int32_t* block_tables;  // [batch, max_blocks]
  int64_t block_tables_stride, max_blocks;
  const int32_t* cu_seqlens_q;  // [batch + 1]
  const int32_t* seq_lens;      // [batch]
  int64_t batch, num_tokens, num_heads, num_kv_heads, head_dim, block_size, num_blocks;
  // No request has more queries than this.  An upper bound is enough: lengths stay on the device.
  int64_t max_query_len;

  float scale, softcap;  // softcap 0: none
  int64_t window;        // keys each query sees, its own included; 0: all
  // False: every query sees all seq_lens keys, wherever it stands (the common prefix of cascade attention);
  // no window then.
  bool causal = true;
  const float* sinks;  // [num_heads] or null

  // Requests with at most decode_rows query rows per KV head are read in splits of split_size keys, counted
  // from position 0, so that a row's bits do not depend on the rest of the batch.
  int64_t split_size;
  // Scratch of decode.cu, of a size that depends on shapes only, so that a captured graph can be replayed
  // with other lengths.  Where it is too small, requests are read by fewer CTAs; bits do not change.
  int32_t* plan;           // [batch], see work.cuh; null: no scratch at all
  float* partial_out;      // [max_partials, padded_head_dim(head_dim)]
  float* partial_max_sum;  // [max_partials, 2]
  int64_t max_partials;
  // Filled in by the launcher of decode.cu: 64-bit divisions are slow on a device.
  int group = 0, split_tiles = 0;
};

// Query rows of one KV head (query positions x heads of the group) that fill one tile of mma.m16n8k16.
constexpr int kDecodeRows = 16;

// Requests with at most so many rows are decode.cu's: one tile, or one query of a group that needs several.
INFERX_HOST_DEVICE constexpr int64_t decode_rows(int64_t group) {
  return group > kDecodeRows ? group : kDecodeRows;
}

// The tensor core kernels exist for these; other head_dims run as the next larger one.
INFERX_HOST_DEVICE constexpr int64_t padded_head_dim(int64_t head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 80 ? 80 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}

// Requests with more than decode_rows(group) rows (prefill.cu), and those with at most so many (decode.cu);
// each skips the other's.  f32 runs on plain arithmetic (exact.cu) and takes all requests.
Error launch_paged_attention_prefill(const PagedAttentionParams& params, void* stream);
Error launch_paged_attention_decode(const PagedAttentionParams& params, void* stream);
Error launch_paged_attention_exact(const PagedAttentionParams& params, void* stream);

}  // namespace inferx::cuda
