// Paged attention for requests with few query rows: split-KV ("Flash-Decoding", Dao et al. 2023), the rows of
// a group of heads packed into one tile of mma.m16n8k16.
//
// Reading the cache is all that matters, so the loads never stop: each warp has a ring of half tiles (its 16
// keys, or their values, of a tile of 64) of its own, filled with cp.async across the ends of splits, heads
// and requests. Warps meet only where a split ends, to join their partial results through the two ring slots
// just used.
#pragma once
#include "kernels/attention/fragments.cuh"
#include "kernels/attention/kv_tile.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/attention/work.cuh"
#include "simt/simt.h"

namespace inferx::cuda::decode {

using namespace simt;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kWarpKeys = kTile / kWarps;  // 16: the k of one mma in P V
static_assert(kWarpKeys == 16 && kDecodeRows == 16);
using WorkWalk = cuda::WorkWalk<PagedAttentionParams>;

template <class Cache, int D>
struct Shape {
  static constexpr int kSlotBytes = kWarpKeys * kRowBytes<Cache, D>;
  static constexpr int kRunningBytes =
      kDecodeRows * D * 4;  // joined splits of a unit that one CTA takes whole
  // As many slots as fit the shared memory of sm_89 and sm_120 (99 KiB), at most 7: with two CTAs or more on
  // an SM, 50 KiB and more are on their way, twice what HBM3e's latency times its bandwidth per SM asks for.
  // An odd number, which keeps the code for finding the next keys in one place.
  static constexpr int kFit = (98 * 1024 - kRunningBytes) / (kWarps * kSlotBytes);
  static constexpr int kSlots = kFit < 3 ? kFit : kFit > 7 ? 7 : (kFit - 1) | 1;
  static constexpr int kRingBytes = kSlots * kSlotBytes;
  static constexpr int kRunningAt = kWarps * kRingBytes, kBytes = kRunningAt + kRunningBytes;
  static_assert(kSlots >= 2 && kBytes + 1024 <= 99 * 1024);  // 1 KiB: static shared memory
  // Accumulator columns that two slots hold while warps are joined.
  static constexpr int kGranule = sizeof(Cache) == 2 ? 8 : 16;
  static constexpr int kSlotColumns = kRowBytes<Cache, D> / 4 / kGranule * kGranule,
                       kPassColumns = 2 * kSlotColumns;
  // On an SM of sm_90 and sm_100 (227 KiB, and as many registers as the accumulators want); more CTAs than
  // fit merely wait for their turn.
  static constexpr int kFitSm = 227 * 1024 / (kBytes + 3 * 1024), kMost = D <= 80 ? 3 : 2,
                       kCtas = kFitSm > kMost ? kMost : kFitSm;
  // Fragments of the query stay in registers where the accumulators leave room.
  static constexpr bool kKeepQuery = D <= 128;
};

// The rows that a lane's accumulators belong to, and what they see.
template <class Cache, class T, int D>
struct LaneRows {
  QueryRows<Cache, T> query;
  KeySpan keys[2];
  LogitScale scale[2];
  KeySpan shared;  // keys that all rows see

  SIMT_DEV void load(const PagedAttentionParams& p, const WorkWalk& item) {
    const DecodeRequest d = load_decode_request(p, item.request());
    const Request& request = d.request;
    const int group = p.group, kv_head = item.unit() / d.row_tiles;
    const int first_row = item.unit() % d.row_tiles * kDecodeRows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + lane_id() / 4 + r * 8, i = row / group, head = row % group;
      const bool exists = row < request.q_len * group;
      keys[r] = exists ? visible_keys(p, request, i) : KeySpan{0, 0};
      query.row[r] = exists
                         ? static_cast<const T*>(p.query) + (request.first_token + i) * p.query_stride_token +
                               (static_cast<int64_t>(kv_head) * group + head) * p.query_stride_head
                         : nullptr;
    }
    query.head_dim = static_cast<int>(p.head_dim);
    query.template measure<D>();
    const float k_scale = p.k_scale == nullptr ? 1.0f : p.k_scale[kv_head * p.k_scale_stride];
#pragma unroll
    for (int r = 0; r < 2; ++r) scale[r] = logit_scale(p, k_scale * query.inverse[r]);
    shared = {visible_keys(p, request, request.q_len - 1).begin, visible_keys(p, request, 0).end};
  }
};

// What a CTA's warps have found about a row of the current split, joined, and where it goes.
template <class Cache, class T, int D>
class RowOutput {
 public:
  SIMT_DEV RowOutput(const PagedAttentionParams& p, float* running) : p_(p), running_(running) {}

  // The row of this thread: eight threads a row, four columns each at a time.
  SIMT_DEV static int row() { return static_cast<int>(threadIdx.x) / 8; }
  SIMT_DEV static int first_column() { return static_cast<int>(threadIdx.x) % 8 * 4; }

  // The split's maximum and sum of the row; before any column.
  SIMT_DEV void begin(const WorkWalk& item, float max, float sum) {
    const DecodeRequest d = load_decode_request(p_, item.request());
    const Request& request = d.request;
    const int group = p_.group, kv_head = item.unit() / d.row_tiles;
    const int packed = item.unit() % d.row_tiles * kDecodeRows + row();
    exists_ = packed < request.q_len * group;
    if (!exists_) return;
    const int query = packed / group, head = kv_head * group + packed % group;
    const bool writes_row = threadIdx.x % 8 == 0;
    first_ = item.split() == d.first_split;
    if (!item.is_whole()) {
      const int64_t at = item.partial(d, query, head);
      partial_ = p_.partial_out + at * D;
      if (writes_row) {
        p_.partial_max_sum[at * 2] = max;
        p_.partial_max_sum[at * 2 + 1] = sum;
      }
      return;
    }
    partial_ = nullptr;
    joins_ = d.splits > 1;
    if (joins_) {
      weights_ = join_weights(first_ ? -INFINITY : max_, max);
      sum_ = join(first_ ? 0.0f : sum_, sum, weights_);
      max_ = weights_.max;
      max = max_;
      sum = sum_;
    }
    last_ = item.split() == d.first_split + d.splits - 1;
    if (!last_) return;
    const RowEnd end = finish_row(max, sum, p_.sinks == nullptr ? -INFINITY : p_.sinks[head],
                                  p_.v_scale == nullptr ? 1.0f : p_.v_scale[kv_head * p_.v_scale_stride]);
    factor_ = end.factor;
    const int64_t token = request.first_token + query;
    out_ = static_cast<T*>(p_.out) + token * p_.out_stride_token + head * p_.out_stride_head;
    if (p_.lse != nullptr && writes_row)
      p_.lse[token * p_.lse_stride_token + head * p_.lse_stride_head] = end.lse;
  }

  SIMT_DEV bool exists() const { return exists_; }

  SIMT_DEV void columns(int column, float (&x)[4]) {
    if (partial_ != nullptr) {
      st16(partial_ + column,
           uint4{__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])});
      return;
    }
    if (joins_) {
      float* running = running_ + row() * D + column;  // this thread's alone
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = join(first_ ? 0.0f : running[i], x[i], weights_);
        if (!last_) running[i] = x[i];
      }
    }
    if (!last_ || column >= p_.head_dim) return;
    *reinterpret_cast<uint2*>(out_ + column) =
        uint2{pack_pair(x[0] * factor_, x[1] * factor_, T{}), pack_pair(x[2] * factor_, x[3] * factor_, T{})};
  }

 private:
  const PagedAttentionParams& p_;
  float* running_;
  float max_ = -INFINITY, sum_ = 0;  // of the splits so far, of a unit taken whole
  float factor_ = 0;
  float* partial_ = nullptr;
  T* out_ = nullptr;
  JoinWeights weights_{};
  bool exists_ = false, first_ = false, last_ = false, joins_ = false;
};

// A warp's loads: keys and values of the items' tiles in turn, each into the next slot of its ring.
template <class Cache, int D>
class Loader {
  using S = Shape<Cache, D>;

 public:
  SIMT_DEV Loader(const PagedAttentionParams& p, const WorkStart& start, unsigned char* ring, int warp)
      : p_(p), walk_(p, start), ring_(ring), warp_(warp) {
    enter();
  }

  // Starts the next copy, of keys or values by turns, as one commit group; an empty one when nothing is left.
  // All lanes.
  template <bool kValues>
  SIMT_DEV void issue() {
    if (!kValues && !walk_.done() && tile_ == walk_.end_tile()) {
      walk_.advance();
      enter();
    }
    if (!walk_.done()) {
      if (!kValues) window_.seek(p_, walk_.request(), tile_, 2 * warp_, keys_.begin, keys_.end);
      const Octet first = window_.get(tile_, 0), second = window_.get(tile_, 1);
      const KvSource source = kValues ? value_source<Cache>(p_, kv_head_) : key_source<Cache>(p_, kv_head_);
      copy_rows<Cache, D, kWarpKeys, 32>(p_, ring_ + slot_ * S::kSlotBytes, source, lane_id(),
                                         tile_ * kTile + warp_ * kWarpKeys, keys_.begin, keys_.end,
                                         [&](int i) { return i == 0 ? first : second; });
      if (kValues) {
        ++tile_;
      } else {
        const uint32_t bits = (first.block >= 0 ? 1u : 0u) | (second.block >= 0 ? 2u : 0u);
        present_ = (present_ & ~(3u << keys_issued_ % 16 * 2)) | bits << keys_issued_ % 16 * 2;
        ++keys_issued_;
      }
    }
    cp_async_commit();
    slot_ = slot_ + 1 == S::kSlots ? 0 : slot_ + 1;
  }

  // Which octets of a tile, counted in the order of issue, have keys.
  SIMT_DEV uint32_t present(uint32_t tile_count) const { return present_ >> tile_count % 16 * 2 & 3u; }

 private:
  SIMT_DEV void enter() {
    while (!walk_.done() && walk_.first_tile() >= walk_.end_tile()) walk_.advance();
    if (walk_.done()) return;
    const DecodeRequest d = load_decode_request(p_, walk_.request());
    tile_ = walk_.first_tile();
    keys_ = d.keys;
    kv_head_ = walk_.unit() / d.row_tiles;
  }

  const PagedAttentionParams& p_;
  WorkWalk walk_;
  OctetWindow<2> window_;
  KeySpan keys_{0, 0};
  unsigned char* ring_;
  int warp_, kv_head_ = 0, tile_ = 0, slot_ = 0;
  uint32_t keys_issued_ = 0, present_ = 0;
};

template <class Cache, class T, int D>
__global__ void __launch_bounds__(kThreads, Shape<Cache, D>::kCtas)
    attention_decode_kernel(const __grid_constant__ PagedAttentionParams p) {
  using S = Shape<Cache, D>;
  using C = Compute<Cache, T>;
  constexpr int kRow = kRowBytes<Cache, D>;
  DYN_SHARED(smem, 16);
  SHARED(WorkStart, start, );
  SHARED(float2, max_sum, [kWarps][kDecodeRows]);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_id();
  unsigned char* ring = smem + warp * S::kRingBytes;
  deal_work<kThreads>(p, start);

  Loader<Cache, D> loader(p, start, ring, warp);
  // All slots but one are under way before anything is used, so while keys are multiplied a copy of keys
  // starts if that number is even, else one of values.
  constexpr bool kEven = (S::kSlots - 1) % 2 == 0;
#pragma unroll 1
  for (int i = 0; i < (S::kSlots - 1) / 2; ++i) {
    loader.template issue<false>();
    loader.template issue<true>();
  }
  if constexpr (!kEven) loader.template issue<false>();
  int slot = 0;  // of the next half to be used
  uint32_t tile_count = 0;
  const auto landed = [&] {
    cp_async_wait<S::kSlots - 2>();
    __syncwarp();  // all lanes' copies are there, and all have read the half before, whose slot is filled
                   // next
  };
  const auto next_half = [&]() -> const unsigned char* {
    const unsigned char* half = ring + slot * S::kSlotBytes;
    slot = slot + 1 == S::kSlots ? 0 : slot + 1;
    return half;
  };

  RowOutput<Cache, T, D> output(p, reinterpret_cast<float*>(smem + S::kRunningAt));
  for (WorkWalk item(p, start); !item.done(); item.advance()) {
    const int first_tile = item.first_tile(), end_tile = item.end_tile();
    if (first_tile >= end_tile) {  // no keys at all
      output.begin(item, -INFINITY, 0.0f);
      for (int c = output.first_column(); output.exists() && c < D; c += 32) {
        float zeros[4] = {0, 0, 0, 0};
        output.columns(c, zeros);
      }
      continue;
    }
    LaneRows<Cache, T, D> rows;
    rows.load(p, item);
    uint32_t kept[S::kKeepQuery ? D / 16 : 1][4];
    if constexpr (S::kKeepQuery) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) rows.query.load(kept[k], k);
    }
    const auto query = [&](uint32_t (&a)[4], int k) {
      if constexpr (S::kKeepQuery) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = kept[k][i];
      } else {
        rows.query.load(a, k);
      }
    };
    RowState state;
    reset(state);
    float out[D / 8][4];
#pragma unroll
    for (int j = 0; j < D / 8; ++j) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;

    for (int tile = first_tile; tile < end_tile; ++tile, ++tile_count) {
      landed();
      loader.template issue<!kEven>();
      float s[2][4] = {};
      multiply_keys<Cache, C, D>(s, query, next_half());
      const int key = tile * kTile + warp * kWarpKeys;
      const uint32_t present = loader.present(tile_count);
      float correction[2];
      if (key >= rows.shared.begin && key + kWarpKeys <= rows.shared.end && present == 3)
        softmax_step<false>(s, state, correction, rows.scale, p.softcap > 0, rows.keys, key);
      else
        softmax_step<true>(s, state, correction, rows.scale, p.softcap > 0, rows.keys, key, present);
      uint32_t weights[4];
      weight_fragment<C>(weights, s[0], s[1]);
      // Maxima seldom grow after the first tiles, and then there is nothing to do: times 1 is exact.
      if (__any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out[j][e] *= correction[e / 2];
        }
      }
      landed();
      if (tile + 1 < end_tile) loader.template issue<kEven>();
      multiply_values<Cache, C, D>(out, weights, next_half());
    }

    // The two slots last used are free in every warp, until the issue that was left out above.
    const int slot_b = slot == 0 ? S::kSlots - 1 : slot - 1,
              slot_a = slot_b == 0 ? S::kSlots - 1 : slot_b - 1;
    const auto exchange = [&](int w, int row, int column) {  // column within the pass
      const bool in_a = column < S::kSlotColumns;
      return reinterpret_cast<float*>(smem + w * S::kRingBytes + (in_a ? slot_a : slot_b) * S::kSlotBytes +
                                      row * kRow) +
             (in_a ? column : column - S::kSlotColumns);
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = sum_over_lanes(state.sum[r]);
      if (lane % 4 == 0) max_sum[warp][lane / 4 + r * 8] = make_float2(state.max[r], sum);
    }
#pragma unroll
    for (int pass = 0; pass < D; pass += S::kPassColumns) {
      __syncwarp();  // the values have been read by all lanes
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        if (j * 8 < pass || j * 8 >= pass + S::kPassColumns) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          *exchange(warp, lane / 4 + e / 2 * 8, output_column<Cache>(j, e) - pass) = out[j][e];
        }
      }
      __syncthreads();
      const int row = output.row();
      float weight[kWarps], max = -INFINITY;
      for (int w = 0; w < kWarps; ++w) max = fmaxf(max, max_sum[w][row].x);
      for (int w = 0; w < kWarps; ++w) weight[w] = fast_exp2(max_sum[w][row].x - finite_max(max));
      if (pass == 0) {
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum = fmaf(weight[w], max_sum[w][row].y, sum);
        output.begin(item, max, sum);
      }
      for (int c = output.first_column(); output.exists() && c < S::kPassColumns && pass + c < D; c += 32) {
        float x[4] = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const uint4 part = ld16(exchange(w, row, c));
          x[0] = fmaf(weight[w], __uint_as_float(part.x), x[0]);
          x[1] = fmaf(weight[w], __uint_as_float(part.y), x[1]);
          x[2] = fmaf(weight[w], __uint_as_float(part.z), x[2]);
          x[3] = fmaf(weight[w], __uint_as_float(part.w), x[3]);
        }
        output.columns(pass + c, x);
      }
      __syncthreads();
    }
    loader.template issue<kEven>();
  }
  cp_async_wait<0>();
}

template <class Cache, class T, int D>
Error launch_decode(const PagedAttentionParams& p, void* stream) {
  using S = Shape<Cache, D>;
  const int64_t group = p.num_heads / p.num_kv_heads,
                row_tiles = (decode_rows(group) + kDecodeRows - 1) / kDecodeRows;
  // Of use: no more CTAs than there can be items.
  const int64_t splits = (p.max_blocks * p.block_size + p.split_size - 1) / p.split_size;
  const int64_t items = p.batch * p.num_kv_heads * row_tiles * (splits > 0 ? splits : 1);
  const int64_t ctas = static_cast<int64_t>(num_sms()) * S::kCtas;
  return launch(attention_decode_kernel<Cache, T, D>,
                dim3(static_cast<unsigned>(items < ctas ? items : ctas)), dim3(kThreads), S::kBytes, stream,
                p);
}

// The four kernels of one head_dim; one file each, so that they build in parallel.
template <int D>
Error launch_head_dim(const PagedAttentionParams& p, void* stream) {
  const bool e4m3 = p.cache_dtype == DType::f8e4m3;
  if (p.dtype == DType::bf16) {
    return e4m3 ? launch_decode<__nv_fp8_e4m3, __nv_bfloat16, D>(p, stream)
                : launch_decode<__nv_bfloat16, __nv_bfloat16, D>(p, stream);
  }
  if (p.dtype != DType::f16) return kInvalidValue;
  return e4m3 ? launch_decode<__nv_fp8_e4m3, __half, D>(p, stream)
              : launch_decode<__half, __half, D>(p, stream);
}
extern template Error launch_head_dim<64>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<80>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<96>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<128>(const PagedAttentionParams&, void*);
extern template Error launch_head_dim<256>(const PagedAttentionParams&, void*);

}  // namespace inferx::cuda::decode
