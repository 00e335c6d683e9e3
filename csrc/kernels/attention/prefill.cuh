// Paged attention for requests with many query rows, on mma.sync (FlashAttention-2's loop; Dao, 2023).
//
// A CTA takes a tile of packed rows (query * group + head of the group, so that the heads of a group share
// the loads of their keys) and walks over the keys in tiles aligned to absolute positions: a row's bits do
// not depend on where a chunk starts or on what else is in the batch, because a tile of which it sees no key
// changes nothing.  One tile of keys and one of values are in shared memory; the next keys are on their way
// during softmax and P V, the values during Q K^T.  Keys and values of an e4m3 cache become elements of the
// query's type (which holds them exactly) when they have arrived, once for all warps.
#pragma once
#include "kernels/attention/fragments.cuh"
#include "kernels/attention/kv_tile.cuh"
#include "kernels/attention/params.h"
#include "kernels/attention/row_tiles.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/dtype_dispatch.h"
#include "simt/simt.h"

namespace inferx::cuda::prefill {

constexpr int kWarps = 4, kThreads = kWarps * 32;

template <class T, class Cache, int kHeadDim>
struct Shape {
  using Element = T;
  static constexpr int kDim = kHeadDim, kSteps = kDim / 16, kColumns = kDim / 8;
  // 32 rows a warp: what it reads of K and V from shared memory serves twice as many rows as with 16, which
  // would be the limit.  At head_dim 256 the output of 32 rows alone would fill the registers, and tiles of
  // 64 keys the shared memory of sm_89.
  static constexpr int kBands = kDim <= 128 ? 2 : 1;  // of 16 rows, per warp
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;
  static constexpr int kWarpRows = 16 * kBands, kRows = kWarps * kWarpRows;
  static constexpr int kStride = kRowBytes<T, kDim>;  // of a row in shared memory
  static constexpr bool kConverts = sizeof(Cache) == 1;
  // Dynamic shared memory: queries (at the end outputs), keys, values, what arrives of an e4m3 cache.
  static constexpr int kKeysAt = kRows * kStride, kValuesAt = kKeysAt + kKeys * kStride;
  static constexpr int kRawAt = kValuesAt + kKeys * kStride;
  static constexpr int kBytes = kRawAt + (kConverts ? kKeys * kDim : 0);
};

// What a CTA works on.  It stays in shared memory, because the loop over the keys needs every register.
struct Job {
  RowTile rows;
  int first_row, kv_head, group;
  int begin, end;  // the keys that some row of the tile sees
  int window;      // INT32_MAX: all
  LogitScale scale;
  int missing;  // a key that some row should see lies in a block that does not exist
};

// Fills in `job` and where the keys that each row sees end; false where the CTA has nothing to do.
template <class S>
SIMT_DEV bool find_job(const PagedAttentionParams& p, Job& job, int (&row_end)[S::kRows]) {
  const int group = static_cast<int>(p.num_heads / p.num_kv_heads);
  const unsigned tiles = static_cast<unsigned>(row_tile_bound(p, S::kRows));  // of a KV head
  const RowTile t = find_row_tile(p, blockIdx.x % tiles, group, S::kRows);
  const int last_tile = (t.rows + S::kRows - 1) / S::kRows - 1;
  if (t.rows <= max(group, kDecodeRows) || t.tile > last_tile) return false;
  const int first_row = (last_tile - t.tile) * S::kRows;  // late rows see most keys: they go first
  const auto visible = [&](int row) {                     // rows past the last one are taken for it
    return visible_keys(p, t.request, min(first_row + row, t.rows - 1) / group);
  };
  for (int row = threadIdx.x; row < S::kRows; row += kThreads) row_end[row] = visible(row).end;
  if (threadIdx.x == 0) {
    const int kv_head = static_cast<int>(blockIdx.x / tiles);
    job.rows = t;
    job.first_row = first_row;
    job.kv_head = kv_head;
    job.group = group;
    job.begin = visible(0).begin;
    job.end = visible(S::kRows - 1).end;
    job.window = p.causal && p.window > 0 ? static_cast<int>(p.window) : INT32_MAX;
    job.missing = 0;
    job.scale = logit_scale(p, p.k_scale == nullptr ? 1.0f : p.k_scale[kv_head * p.k_scale_stride]);
    if (job.scale.outer == 0) job.scale.outer = 1e-30f;  // weights stay equal, and those of -inf zero
  }
  return true;
}

// Brings the tile's queries into shared memory, zeros beyond the last row and head_dim.
template <class S>
SIMT_DEV void load_queries(const PagedAttentionParams& p, const Job& job, unsigned char* queries) {
  using T = typename S::Element;
  for (int i = threadIdx.x; i < S::kRows * S::kColumns; i += kThreads) {
    const int row = i / S::kColumns, d = i % S::kColumns * 8, packed = job.first_row + row;
    uint4 v = {0, 0, 0, 0};
    if (packed < job.rows.rows && d < p.head_dim) {
      const int64_t token = job.rows.request.first_token + packed / job.group;
      const int64_t head = job.kv_head * job.group + packed % job.group;
      v = ld16(static_cast<const T*>(p.query) + token * p.query_stride_token + head * p.query_stride_head +
               d);
    }
    st16(queries + row * S::kStride + d * 2, v);
  }
}

// ---- keys and values on their way ------------------------------------------------------------------------

// The block that holds a key, -1 where no row of the tile sees it or there is no such block.
SIMT_DEV int block_of_key(const PagedAttentionParams& p, const Job& job, int key) {
  if (key < job.begin || key >= job.end) return -1;
  const int block =
      p.block_tables[job.rows.batch_index * p.block_tables_stride + key / static_cast<int>(p.block_size)];
  return block < p.num_blocks ? block : -1;
}

// Where a key or its value lies in the cache; null: zeros take its place.
template <class Cache>
SIMT_DEV const Cache* place_of(const PagedAttentionParams& p, const Job& job, bool value, int key,
                               int block) {
  if (block < 0) return nullptr;
  const int64_t slot = key % static_cast<int>(p.block_size), head = job.kv_head;
  return static_cast<const Cache*>(value ? p.value_cache : p.key_cache) +
         (value ? block * p.value_stride_block + slot * p.value_stride_slot + head * p.value_stride_head
                : block * p.key_stride_block + slot * p.key_stride_slot + head * p.key_stride_head);
}

// Starts copying a tile: 16-bit elements to where they are used, e4m3 densely.  Unseen keys are not read.
template <class S, class Cache, int kCopy>
SIMT_DEV void copy_tile(unsigned char* to, const Cache* const (&places)[S::kKeys], const void* nothing,
                        int head_dim) {
  constexpr int kEach = kCopy / static_cast<int>(sizeof(Cache)), kCopies = S::kDim / kEach;
  constexpr int kStride = S::kConverts ? S::kDim : S::kStride;
#pragma unroll S::kConverts ? 1 : 2  // the registers are for the accumulators
  for (int i = threadIdx.x; i < S::kKeys * kCopies; i += kThreads) {
    const int row = i / kCopies, d = i % kCopies * kEach;
    const Cache* place = places[row];
    const bool there = place != nullptr && d < head_dim;
    cp_async<kCopy>(to + row * kStride + d * sizeof(Cache), there ? place + d : nothing, there ? kCopy : 0);
  }
  cp_async_commit();
}
// Copies that have arrived, of e4m3, to elements of T: each thread its own, so no barrier is needed before.
template <class S, int kCopy>
SIMT_DEV void convert_tile(unsigned char* to, const unsigned char* raw) {
  using T = typename S::Element;
  constexpr int kCopies = S::kDim / kCopy;
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kKeys * kCopies; i += kThreads) {
#pragma unroll
    for (int part = 0; part < kCopy / 8; ++part) {
      const uint2 bytes = *reinterpret_cast<const uint2*>(raw + i * kCopy + part * 8);
      const auto pair = [](uint32_t two) {
        const float2 x = unpack_pair(e4m3_to_f16(two & 0xffffu), __half{});
        return pack_pair(x.x, x.y, T{});
      };
      st16(to + i / kCopies * S::kStride + (i % kCopies * kCopy + part * 8) * 2,
           uint4{pair(bytes.x), pair(bytes.x >> 16), pair(bytes.y), pair(bytes.y >> 16)});
    }
  }
}

template <class S, class Cache>
SIMT_DEV void start_tile(const PagedAttentionParams& p, unsigned char* smem, int at,
                         const Cache* const (&places)[S::kKeys]) {
  unsigned char* to = smem + (S::kConverts ? S::kRawAt : at);
  const int head_dim = static_cast<int>(p.head_dim);
  if (!S::kConverts || p.copy_bytes == 16) {
    copy_tile<S, Cache, 16>(to, places, p.key_cache, head_dim);
  } else {
    copy_tile<S, Cache, 8>(to, places, p.key_cache, head_dim);
  }
}
// The caller's next barrier shows the tile to all threads.
template <class S>
SIMT_DEV void finish_tile(const PagedAttentionParams& p, unsigned char* smem, int at) {
  cp_async_wait<0>();
  if constexpr (S::kConverts) {
    if (p.copy_bytes == 16) {
      convert_tile<S, 16>(smem + at, smem + S::kRawAt);
    } else {
      convert_tile<S, 8>(smem + at, smem + S::kRawAt);
    }
  }
}

// ---- a warp's rows times a tile --------------------------------------------------------------------------

// Accumulators of mma.m16n8k16: scores, outputs.
template <class S>
using Scores = float[S::kBands][S::kKeys / 8][4];
template <class S>
using Output = float[S::kBands][S::kColumns][4];
// A fragments of the softmax weights P.
template <class S>
using Weights = uint32_t[S::kBands][S::kKeys / 16][4];

// s = Q K^T
template <class S>
SIMT_DEV void multiply_keys(Scores<S>& s, const unsigned char* queries, const unsigned char* keys) {
  using T = typename S::Element;
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = 0;
    }
  }
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < S::kSteps; ++k) {
    uint32_t a[S::kBands][4];
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
      ldmatrix_x4(a[m], queries + (m * 16 + lane % 16) * S::kStride + k * 32 + lane / 16 * 16);
    }
#pragma unroll
    for (int n = 0; n < S::kKeys / 16; ++n) {
      uint32_t b[1][4];
      key_fragments<T, S::kDim>(b, keys + n * 16 * S::kStride, k);
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) mma_n16(s[m][2 * n], s[m][2 * n + 1], a[m], b[0], T{});
    }
  }
}

// out += P V
template <class S>
SIMT_DEV void multiply_values(Output<S>& out, const Weights<S>& weights, const unsigned char* values) {
  using T = typename S::Element;
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
    for (int j = 0; j < S::kSteps; ++j) {
      uint32_t b[1][4];
      value_fragments<T, S::kDim>(b, values + k * 16 * S::kStride, j);
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) mma_n16(out[m][2 * j], out[m][2 * j + 1], weights[m][k], b[0], T{});
    }
  }
}

// The soft cap, up to the factor that LogitScale::outer brings.
template <class S>
SIMT_DEV void cap_scores(Scores<S>& s, float inner) {
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = soft_tanh(s[m][n][e] * inner);
    }
  }
}

// Gives the keys that a row does not see the score `unseen`.
template <class S>
SIMT_DEV void mask_scores(Scores<S>& s, float unseen, const int* row_end, int window, int first_key) {
  const int lane = lane_id();
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int end = row_end[m * 16 + e / 2 * 8 + lane / 4] - (first_key + lane % 4 * 2 + e % 2);
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        if (n * 8 >= end || n * 8 < end - window) s[m][n][e] = unseen;
      }
    }
  }
}

// The same for keys that have no place.
template <class S, class Cache>
SIMT_DEV void mask_missing(Scores<S>& s, float unseen, const Cache* const (&places)[S::kKeys]) {
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (places[n * 8 + lane_id() % 4 * 2 + e] != nullptr) continue;
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) s[m][n][e] = s[m][n][e + 2] = unseen;
    }
  }
}

// Scores to weights, and what has been summed so far to the new maximum.
template <class S>
SIMT_DEV void softmax(Weights<S>& weights, Scores<S>& s, RowState (&state)[S::kBands], Output<S>& out,
                      const LogitScale& scale) {
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
    const LogitScale scales[2] = {scale, scale};
    const KeySpan no_mask[2] = {};
    float correction[2];
    softmax_step<false>(s[m], state[m], correction, scales, false, no_mask, 0);
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[m][n][e] *= correction[e / 2];
    }
#pragma unroll
    for (int k = 0; k < S::kKeys / 16; ++k) {
      weight_fragment<typename S::Element>(weights[m][k], s[m][2 * k], s[m][2 * k + 1]);
    }
  }
}

// Divides by the sums and writes a warp's rows, by way of shared memory, so that they leave in 16-byte
// pieces.
template <class S>
SIMT_DEV void store(const PagedAttentionParams& p, const Job& job, unsigned char* rows, int warp_row,
                    const Output<S>& out, const RowState (&state)[S::kBands]) {
  using T = typename S::Element;
  const int lane = lane_id(), first_row = job.first_row + warp_row, num_rows = job.rows.rows;
  const int group = job.group, first_head = job.kv_head * group;
  const int64_t first_token = job.rows.request.first_token;
  const float v_scale = p.v_scale == nullptr ? 1.0f : p.v_scale[job.kv_head * p.v_scale_stride];
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = m * 16 + h * 8 + lane / 4, packed = first_row + row, head = first_head + packed % group;
      const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head];
      const RowEnd end = finish_row(state[m].max[h], sum_over_lanes(state[m].sum[h]), sink, v_scale);
      if (p.lse != nullptr && lane % 4 == 0 && packed < num_rows) {
        p.lse[(first_token + packed / group) * p.lse_stride_token + head * p.lse_stride_head] = end.lse;
      }
#pragma unroll
      for (int n = 0; n < S::kColumns; ++n) {
        *reinterpret_cast<uint32_t*>(rows + row * S::kStride + n * 16 + lane % 4 * 4) =
            pack_pair(out[m][n][2 * h] * end.factor, out[m][n][2 * h + 1] * end.factor, T{});
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < S::kWarpRows * S::kColumns; i += 32) {
    const int row = i / S::kColumns, d = i % S::kColumns * 8, packed = first_row + row;
    if (packed >= num_rows || d >= p.head_dim) continue;
    T* to = static_cast<T*>(p.out) + (first_token + packed / group) * p.out_stride_token +
            (first_head + packed % group) * p.out_stride_head + d;
    st16(to, ld16(rows + row * S::kStride + d * 2));
  }
}

template <class T, class Cache, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    attention_prefill_kernel(const __grid_constant__ PagedAttentionParams p) {
  using S = Shape<T, Cache, kHeadDim>;
  DYN_SHARED(smem, 16);
  SHARED(Job, job, );
  SHARED(int, row_end, [S::kRows]);
  SHARED(const Cache*, places, [2][2][S::kKeys]);  // of even and odd tiles: keys, values
  if (!find_job<S>(p, job, row_end)) return;       // the whole CTA
  __syncthreads();

  const int tid = threadIdx.x, warp_row = tid / 32 * S::kWarpRows;
  unsigned char* my_rows = smem + warp_row * S::kStride;
  // Threads 0 to kKeys - 1 follow the keys, as many after them the values.
  const int my_key = tid % S::kKeys;
  const bool my_value = tid / S::kKeys % 2 != 0, follows = kThreads == 2 * S::kKeys || tid < 2 * S::kKeys;
  int first_key = job.begin / S::kKeys * S::kKeys;
  const auto put_place = [&](int key, int block) {
    places[key / S::kKeys % 2][my_value][my_key] = place_of<Cache>(p, job, my_value, key, block);
    if (block < 0 && key >= job.begin && key < job.end) atomicOr(&job.missing, 1);
  };
  load_queries<S>(p, job, smem);
  if (follows) put_place(first_key + my_key, block_of_key(p, job, first_key + my_key));
  int next_block = block_of_key(p, job, first_key + S::kKeys + my_key);  // asked for a tile ahead
  __syncthreads();
  start_tile<S, Cache>(p, smem, S::kKeysAt, places[first_key / S::kKeys % 2][0]);

  RowState state[S::kBands];
  Output<S> out;
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
    reset(state[m]);
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[m][n][e] = 0;
    }
  }

  for (; first_key < job.end; first_key += S::kKeys) {
    finish_tile<S>(p, smem, S::kKeysAt);
    __syncthreads();  // the keys are there; the values of the tile before have been used
    start_tile<S, Cache>(p, smem, S::kValuesAt, places[first_key / S::kKeys % 2][1]);
    const int next_key = first_key + S::kKeys + my_key;
    if (follows) put_place(next_key, next_block);
    next_block = block_of_key(p, job, next_key + S::kKeys);

    // Do some of the warp's rows see some of these keys; do all see all?
    const int first_end = row_end[warp_row], last_end = row_end[warp_row + S::kWarpRows - 1];
    const bool some = first_key < last_end && first_key + S::kKeys > first_end - job.window;
    const bool all = first_key + S::kKeys <= first_end && first_key >= last_end - job.window;
    Scores<S> s;
    if (some) multiply_keys<S>(s, my_rows, smem + S::kKeysAt);

    finish_tile<S>(p, smem, S::kValuesAt);
    __syncthreads();  // the values are there; the keys have been used, and the next ones' places are written
    if (first_key + S::kKeys < job.end) {
      start_tile<S, Cache>(p, smem, S::kKeysAt, places[next_key / S::kKeys % 2][0]);
    }
    if (!some) continue;
    if (p.softcap > 0) cap_scores<S>(s, job.scale.inner);
    const float unseen = job.scale.outer < 0 ? INFINITY : -INFINITY;
    if (!all) mask_scores<S>(s, unseen, row_end + warp_row, job.window, first_key);
    if (job.missing != 0) mask_missing<S>(s, unseen, places[first_key / S::kKeys % 2][0]);
    Weights<S> weights;
    softmax<S>(weights, s, state, out, job.scale);
    multiply_values<S>(out, weights, smem + S::kValuesAt);
  }
  cp_async_wait<0>();
  store<S>(p, job, my_rows, warp_row, out, state);  // the warp's own queries are done with
}

template <class T, class Cache, int kHeadDim>
Error launch_types(const PagedAttentionParams& p, void* stream) {
  using S = Shape<T, Cache, kHeadDim>;
  const dim3 grid(row_tile_bound(p, S::kRows) * p.num_kv_heads);
  return launch(attention_prefill_kernel<T, Cache, kHeadDim>, grid, dim3(kThreads), S::kBytes, stream, p);
}

// Instantiated in prefill_<head_dim>.cu, so that they compile side by side.
template <int kHeadDim>
Error launch_head_dim(const PagedAttentionParams& p, void* stream) {
  const auto go = [&](auto element) {
    using T = decltype(element);
    return p.cache_dtype == DType::f8e4m3 ? launch_types<T, __nv_fp8_e4m3, kHeadDim>(p, stream)
                                          : launch_types<T, T, kHeadDim>(p, stream);
  };
  if (p.dtype != p.cache_dtype && p.cache_dtype != DType::f8e4m3) return kInvalidValue;
  if (p.dtype == DType::bf16) return go(__nv_bfloat16{});
  return p.dtype == DType::f16 ? go(__half{}) : kInvalidValue;
}
extern template Error launch_head_dim<64>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<80>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<96>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<128>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<256>(const PagedAttentionParams&, void*);

}  // namespace inferx::cuda::prefill
