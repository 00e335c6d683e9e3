// Bound by memory: query and key are read and written once, the value read once.  A thread holds one column
// of a token's row for several tokens (see reshape_and_cache.cu); a column is one of
//   pairs of a query head       turned in place
//   pairs of a key head         turned in place and stored
//   the rest of a key head      stored (partial rotary)
//   a vector of a value head    stored
#include "kernels/cache_rows.cuh"
#include "kernels/rope_and_cache.h"
#include "kernels/rotary.cuh"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kTokens = 2;     // a column of pairs is two vectors, so up to four loads in flight
constexpr int kCtasPerSm = 3;  // 768 threads with four loads each cover the latency; fewer registers spill

struct Column {
  TokenRows rows;  // what it reads
  int64_t head;    // < 0: no column
  int64_t lo, hi;  // its vectors, in elements from the head's start; hi < 0: one only
  int64_t pair;    // the first of its pairs; < 0: none
  int cache;       // 0 or 1, the cache it is stored in; < 0: none
};

template <int N>
SIMT_DEV Column find_column(const RopeAndCacheParams& p, uint32_t index) {
  const uint32_t dim = static_cast<uint32_t>(p.store.head_dim), rot = static_cast<uint32_t>(p.rotary.rot_dim);
  const uint32_t kv_heads = static_cast<uint32_t>(p.store.num_heads);
  const uint32_t pairs = rot / 2 / N;  // columns per head
  for (int i = 0; i < 2; ++i) {
    const RotaryTensor& x = p.rotary.tensors[i];
    const uint32_t count = static_cast<uint32_t>(x.num_heads) * pairs;
    if (index >= count) {
      index -= count;
      continue;
    }
    const uint32_t head = index / pairs;
    const int64_t pair = (index - head * pairs) * N;
    const RotaryOffsets at = rotary_offsets<N>(pair, rot / 2, p.rotary.is_neox);
    return {{x.data, x.stride_token, x.stride_head}, head, at.lo, at.hi, pair, i == 0 ? -1 : 0};
  }
  for (int i = 0; i < 2; ++i) {
    const uint32_t first = i == 0 ? rot : 0, per_head = (dim - first) / N, count = kv_heads * per_head;
    if (index >= count) {
      index -= count;
      continue;
    }
    const uint32_t head = index / per_head;
    return {p.store.input[i], head, first + (index - head * per_head) * N, -1, -1, i};
  }
  return {{nullptr, 0, 0}, -1, 0, -1, -1, -1};
}

template <class T, class Out, int N>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    rope_and_cache_kernel(const __grid_constant__ RopeAndCacheParams p, FastDiv block_size) {
  // Of each of the CTA's tokens: where its row begins in both caches and in the table; -1: nowhere.
  SHARED(int64_t, offsets, [kThreads / 32 * kTokens][3]);

  const Column column = find_column<N>(p, blockIdx.y * blockDim.x + threadIdx.x);
  const bool active = column.head >= 0;
  const int64_t cta_token = static_cast<int64_t>(blockIdx.x) * blockDim.y * kTokens;
  const int64_t first = cta_token + threadIdx.y * kTokens, num_tokens = p.store.num_tokens;
  T* const x = active ? static_cast<T*>(column.rows.data) + column.head * column.rows.stride_head : nullptr;
  Packed<T, N> lo[kTokens], hi[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (!active || first + i >= num_tokens) continue;
    const T* from = x + (first + i) * column.rows.stride_token;
    lo[i] = load_packed<N>(from + column.lo);
    if (column.pair >= 0) hi[i] = load_packed<N>(from + column.hi);
  }

  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < static_cast<int>(blockDim.y) * kTokens;
       i += blockDim.x * blockDim.y) {
    const int64_t token = cta_token + i;
    const int64_t slot = token < num_tokens ? p.store.slot_mapping[token] : -1;
    const int64_t position = token < num_tokens ? p.rotary.positions[token * p.rotary.positions_stride] : -1;
    offsets[i][0] = slot_offset(slot, p.store.num_slots, block_size, p.store.cache[0]);
    offsets[i][1] = slot_offset(slot, p.store.num_slots, block_size, p.store.cache[1]);
    const bool known = position >= 0 && position < p.rotary.cache_rows;
    offsets[i][2] = known ? position * p.rotary.cache_stride : -1;
  }
  __syncthreads();
  if (!active) return;

  const bool stored = column.cache >= 0;
  const CacheRows& cache = p.store.cache[column.cache == 1];
  Out* const to = static_cast<Out*>(cache.data) + column.head * cache.stride_head;
  // A column of the query has no head in the scales; the first one's is read and not used.
  const ToCache<T, Out> to_cache(p.store.scale[column.cache == 1], stored ? column.head : 0);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (first + i >= num_tokens) continue;
    const int64_t* offset = offsets[threadIdx.y * kTokens + i];
    if (column.pair >= 0 && offset[2] >= 0) {
      const float* cos = p.rotary.cos_sin_cache + offset[2] + column.pair;
      rotate(lo[i], hi[i], load_packed<N>(cos), load_packed<N>(cos + p.rotary.rot_dim / 2), p.rotary.is_neox);
      T* back = x + (first + i) * column.rows.stride_token;
      store_packed(back + column.lo, lo[i]);
      store_packed(back + column.hi, hi[i]);
    }
    if (!stored || offset[column.cache] < 0) continue;
    store_packed(to + offset[column.cache] + column.lo, to_cache(lo[i]));
    if (column.pair >= 0) store_packed(to + offset[column.cache] + column.hi, to_cache(hi[i]));
  }
}

template <class T, class Out, int N>
Error launch_vectors(const RopeAndCacheParams& p, void* stream) {
  const RotaryParams& r = p.rotary;
  const int64_t heads = r.tensors[0].num_heads + r.tensors[1].num_heads;
  const int64_t kept = 2 * p.store.head_dim - r.rot_dim;  // of a KV head: the key's rest and the value
  const int64_t columns = heads * (r.rot_dim / 2 / N) + p.store.num_heads * (kept / N);
  if (columns == 0) return kSuccess;
  const TokenGrid g = token_grid(columns, p.store.num_tokens, kThreads, kTokens);
  if (!g.valid || p.store.num_slots > INT32_MAX) return kInvalidValue;
  return launch(rope_and_cache_kernel<T, Out, N>, g.grid, g.block, 0, stream, p,
                FastDiv(static_cast<uint32_t>(p.store.block_size)));
}

bool fits(const RopeAndCacheParams& p, int64_t n) {
  const RotaryParams& r = p.rotary;
  const RotaryTensor& query = r.tensors[0];
  const uint64_t table = reinterpret_cast<uint64_t>(r.cos_sin_cache) |
                         static_cast<uint64_t>(r.cache_stride) * sizeof(float) |
                         static_cast<uint64_t>(r.rot_dim / 2) * sizeof(float);
  return cache_rows_fit(p.store, n) && r.rot_dim / 2 % n == 0 && table % 16 == 0 &&
         rows_fit(TokenRows{query.data, query.stride_token, query.stride_head}, n, dtype_size(r.dtype));
}

}  // namespace

Error launch_rope_and_cache(const RopeAndCacheParams& p, void* stream) {
  if (p.store.num_tokens == 0) return kSuccess;
  return dispatch_float(p.rotary.dtype, [&](auto element) {
    return dispatch_cache_dtype(p.store.cache_dtype, [&](auto cache) {
      using T = decltype(element);
      using Out = decltype(cache);
      constexpr int kWide = kCacheVector<T, Out>;
      return fits(p, kWide) ? launch_vectors<T, Out, kWide>(p, stream) : launch_vectors<T, Out, 1>(p, stream);
    });
  });
}

}  // namespace inferx::cuda
