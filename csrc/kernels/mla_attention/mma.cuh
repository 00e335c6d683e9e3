// Latent attention on mma.m16n8k16: one kernel for prefill and decode.
//
// A tile of 32 cache rows in shared memory is K (all of its columns) and V (the first ones).  Four warps
// share a band of 16 query rows.  For S = Q K^T each takes a quarter of the columns, of which it keeps Q in
// registers; the four partial scores meet in shared memory, each warp adds all of them in order and goes
// through the same softmax, so that all have the weights as fragments.  For O += P V each takes a quarter of
// the values' columns.  Two tiles are in shared memory, the next one under way during the products.
//
// Budget, for 576 columns of 16 bits and values of 512:
//   shared memory  a row 1168 bytes (padded: no bank conflicts), a tile 36.5 KiB, two 73 KiB; partial scores
//                  8 KiB a band.  81 KiB with one band: two CTAs on an SM of sm_90; 89 KiB with two: one CTA
//                  on sm_80, sm_89 (99 KiB), sm_120.
//   registers      O of a warp 16 x 128: 64; O of the splits before: 64; Q 16 x 144: 36; scores 16; weights
//   8;
//                  cap 255 (128 threads twice, or 256 once).
//
// A row's bits: tiles are counted from position 0, splits of kMlaSplit keys are joined in order (here, or by
// combine.cuh with the same arithmetic), and nothing else of a row's arithmetic depends on the rows beside
// it, the number of bands or the grid.
#pragma once
#include "kernels/attention/fragments.cuh"
#include "kernels/attention/kv_tile.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/mla_attention/work.cuh"
#include "simt/simt.h"

namespace inferx::cuda::mla {

using namespace simt;

constexpr int kBandRows = 16, kBandWarps = 4;
constexpr int kOctets = kMlaTile / kOctet;
constexpr uint32_t kAllOctets = (1u << kOctets) - 1;

template <int kKeyDim, int kValueDim, int kBandCount>
struct Shape {
  static constexpr int kDim = kKeyDim, kBands = kBandCount;
  static constexpr int kThreads = kBands * kBandWarps * 32, kRows = kBands * kBandRows;
  static constexpr int kSteps = kDim / 16, kWarpSteps = (kSteps + kBandWarps - 1) / kBandWarps;
  static constexpr int kWarpColumns = kValueDim / kBandWarps;
  static constexpr int kTileBytes = kMlaTile * kRowBytes<__half, kDim>;
  static constexpr int kScoresAt = 2 * kTileBytes;
  static constexpr int kBytes = kScoresAt + kBands * kBandWarps * kBandRows * kMlaTile * 4;
  static constexpr int kCtas = kBands == 1 ? 2 : 1;  // on an SM
  static_assert(kDim % 16 == 0 && kValueDim % (16 * kBandWarps) == 0 && kValueDim <= kDim);
  static_assert(kBytes + 1024 <= 99 * 1024);  // 1 KiB: static shared memory
};

// The rows that a lane's accumulators belong to.  Found twice, before the loop over the keys and after it,
// which needs the registers.
template <class T, class S>
struct LaneRows {
  Request request;
  int first_row;  // of the CTA; rows are counted within the request
  int num_rows;   // of the request
  int row[2];     // query * heads + head

  SIMT_DEV LaneRows(const MlaAttentionParams& p, const WorkWalk<MlaAttentionParams>& item, int band) {
    request = load_request(p, item.request());
    num_rows = request.q_len * p.group;
    first_row = row_tile_of(item.unit(), (num_rows + S::kRows - 1) / S::kRows) * S::kRows;
    row[0] = first_row + band * kBandRows + lane_id() / 4;
    row[1] = row[0] + 8;
  }

  SIMT_DEV bool exists(int r) const { return row[r] < num_rows; }
  SIMT_DEV int query(const MlaAttentionParams& p, int r) const { return row[r] / p.group; }
  SIMT_DEV int head(const MlaAttentionParams& p, int r) const { return row[r] % p.group; }
  SIMT_DEV int64_t token(const MlaAttentionParams& p, int r) const {
    return request.first_token + query(p, r);
  }
  // Where the keys end that a row, the last row if there is no such row, sees.
  SIMT_DEV int keys_end(const MlaAttentionParams& p, int of_row) const {
    return visible_keys(p, request, min(of_row, num_rows - 1) / p.group).end;
  }

  // Fragments of the columns of steps [first, first + kCount) that are below kSteps.
  template <int kSteps, int kCount>
  SIMT_DEV void load_query(const MlaAttentionParams& p, int first, uint32_t (&fragments)[kCount][4]) const {
    QueryRows<T, T> from;
    from.head_dim = static_cast<int>(p.head_dim);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      from.row[r] = exists(r) ? static_cast<const T*>(p.query) + token(p, r) * p.query_stride_token +
                                    head(p, r) * p.query_stride_head
                              : nullptr;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (kSteps % kCount == 0 || first + i < kSteps) from.load(fragments[i], first + i);
    }
  }
};

// What the CTA's loop over the keys needs to know.  It stays in shared memory, because the loop needs every
// register.
struct Job {
  int request, request_end;  // and where its keys end
  int end, end_tile;         // of the keys that some row sees
  bool whole;                // all splits
};

// Tiles of cache rows, copied by all threads of the CTA.
template <class T, class S>
class Loader {
 public:
  SIMT_DEV Loader(const MlaAttentionParams& p, unsigned char* tiles) : p_(p), tiles_(tiles) {}

  // Starts copying a tile into one of the two places, as a commit group.  Keys that no row sees are not read.
  SIMT_DEV void issue(const Job& job, int tile) {
    window_.seek(p_, job.request, tile, 0, 0, job.request_end);
    copy_rows<T, S::kDim, kMlaTile, S::kThreads, 16>(tiles_ + tile % 2 * S::kTileBytes, key_source<T>(p_, 0),
                                                     static_cast<int>(threadIdx.x), tile * kMlaTile, 0,
                                                     job.end, [&](int i) { return window_.get(tile, i); });
    cp_async_commit();
    present_ = present_ << kOctets | window_.present(tile);
  }

  // Which octets of the tile issued before the last one have keys (`last`: of the last one).
  SIMT_DEV uint32_t present(bool last) const { return (last ? present_ : present_ >> kOctets) & kAllOctets; }

 private:
  const MlaAttentionParams& p_;
  OctetWindow<kOctets, kMlaTile> window_;
  unsigned char* tiles_;
  uint32_t present_ = 0;
};

// Partial scores s of the columns of steps [first, first + kWarpSteps).
template <class T, class S>
SIMT_DEV void multiply_keys(float (&s)[kOctets][4], const uint32_t (&query)[S::kWarpSteps][4],
                            const unsigned char* keys, int first) {
#pragma unroll
  for (int i = 0; i < S::kWarpSteps; ++i) {
    if (S::kSteps % S::kWarpSteps != 0 && first + i >= S::kSteps) continue;
#pragma unroll
    for (int n = 0; n < kMlaTile / 16; ++n) {
      uint32_t b[1][4];
      key_fragments<T, S::kDim>(b, keys + n * 16 * kRowBytes<T, S::kDim>, first + i);
      mma_n16(s[2 * n], s[2 * n + 1], query[i], b[0], T{});
    }
  }
}

// Adds the four partial scores of a band's warps in order.
template <class S>
SIMT_DEV void exchange_scores(float (&s)[kOctets][4], unsigned char* smem) {
  const int warp = static_cast<int>(threadIdx.x) / 32, band = warp / kBandWarps, quarter = warp % kBandWarps;
  const auto place = [&](int q, int n) {
    return smem + S::kScoresAt + (((band * kBandWarps + q) * kOctets + n) * 32 + lane_id()) * 16;
  };
#pragma unroll
  for (int n = 0; n < kOctets; ++n) {
    st16(place(quarter, n), uint4{__float_as_uint(s[n][0]), __float_as_uint(s[n][1]),
                                  __float_as_uint(s[n][2]), __float_as_uint(s[n][3])});
  }
  named_barrier(1 + band, kBandWarps * 32);
#pragma unroll
  for (int n = 0; n < kOctets; ++n) {
    s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int q = 0; q < kBandWarps; ++q) {
      const uint4 part = ld16(place(q, n));
      s[n][0] += __uint_as_float(part.x);
      s[n][1] += __uint_as_float(part.y);
      s[n][2] += __uint_as_float(part.z);
      s[n][3] += __uint_as_float(part.w);
    }
  }
}

// A warp's output columns, as accumulators.
template <class S>
using Output = float[S::kWarpColumns / 8][4];

template <class T, class S>
SIMT_DEV void multiply_values(Output<S>& out, const float (&s)[kOctets][4], const unsigned char* values,
                              int quarter) {
  uint32_t weights[kMlaTile / 16][4];
#pragma unroll
  for (int k = 0; k < kMlaTile / 16; ++k) weight_fragment<T>(weights[k], s[2 * k], s[2 * k + 1]);
#pragma unroll
  for (int k = 0; k < kMlaTile / 16; ++k) {
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 16; ++j) {
      uint32_t b[1][4];
      value_fragments<T, S::kDim>(b, values + k * 16 * kRowBytes<T, S::kDim>,
                                  quarter * (S::kWarpColumns / 16) + j);
      mma_n16(out[2 * j], out[2 * j + 1], weights[k], b[0], T{});
    }
  }
}

// The splits so far of a unit that one CTA takes whole.
template <class S>
struct Joined {
  float max[2], sum[2];
  Output<S> out;

  SIMT_DEV void reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
  }

  // Adds a split and empties its accumulators.
  SIMT_DEV void add(RowState& state, Output<S>& split) {
    JoinWeights weights[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weights[r] = join_weights(max[r], state.max[r]);
      sum[r] = join(sum[r], sum_over_lanes(state.sum[r]), weights[r]);
      max[r] = weights[r].max;
    }
    cuda::reset(state);
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out[j][e] = join(out[j][e], split[j][e], weights[e / 2]);
        split[j][e] = 0;
      }
    }
  }
};

// One split's result to scratch, for combine.cuh.
template <class T, class S>
SIMT_DEV void store_partial(const MlaAttentionParams& p, const WorkWalk<MlaAttentionParams>& item,
                            const LaneRows<T, S>& rows, const RowState& state, const Output<S>& out,
                            int quarter) {
  const DecodeRequest d = load_decode_request(p, item.request());
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = sum_over_lanes(state.sum[r]);
    if (!rows.exists(r)) continue;
    const int64_t at = item.partial(d, rows.query(p, r), rows.head(p, r));
    if (quarter == 0 && lane_id() % 4 == 0) {
      p.partial_max_sum[at * 2] = state.max[r];
      p.partial_max_sum[at * 2 + 1] = sum;
    }
    float* to = p.partial_out + at * p.value_dim + quarter * S::kWarpColumns + lane_id() % 4 * 2;
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) {
      st8(to + j * 8, uint2{__float_as_uint(out[j][2 * r]), __float_as_uint(out[j][2 * r + 1])});
    }
  }
}

template <class T, class S>
SIMT_DEV void store_rows(const MlaAttentionParams& p, const LaneRows<T, S>& rows, const Joined<S>& joined,
                         int quarter) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!rows.exists(r)) continue;
    const RowEnd end = finish_row(joined.max[r], joined.sum[r], -INFINITY, 1.0f);
    const int64_t token = rows.token(p, r), head = rows.head(p, r);
    if (p.lse != nullptr && quarter == 0 && lane_id() % 4 == 0)
      p.lse[token * p.lse_stride_token + head * p.lse_stride_head] = end.lse;
    T* to = static_cast<T*>(p.out) + token * p.out_stride_token + head * p.out_stride_head +
            quarter * S::kWarpColumns + lane_id() % 4 * 2;
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) {
      st4(to + j * 8,
          pack_pair(joined.out[j][2 * r] * end.factor, joined.out[j][2 * r + 1] * end.factor, T{}));
    }
  }
}

template <class T, int kKeyDim, int kValueDim, int kBands>
__global__ void __launch_bounds__(Shape<kKeyDim, kValueDim, kBands>::kThreads,
                                  Shape<kKeyDim, kValueDim, kBands>::kCtas)
    mla_attention_mma_kernel(const __grid_constant__ MlaAttentionParams p) {
  using S = Shape<kKeyDim, kValueDim, kBands>;
  DYN_SHARED(smem, 16);
  SHARED(WorkStart, start, );
  SHARED(Job, job, );
  SHARED(int, row_end, [S::kRows]);  // of the keys that a row sees; 0 in a band without rows
  deal_work<S::kThreads>(p, start);

  const int warp = static_cast<int>(threadIdx.x) / 32, quarter = warp % kBandWarps;
  const LogitScale scale[2] = {{0, p.scale * kLog2e}, {0, p.scale * kLog2e}};
  Loader<T, S> loader(p, smem);
  for (;;) {
    uint32_t query[S::kWarpSteps][4];
    int tile;
    {
      const WorkWalk<MlaAttentionParams> item(p, start);
      if (item.done()) break;  // the whole CTA
      const LaneRows<T, S> rows(p, item, warp / kBandWarps);
      tile = item.first_tile();
      if (threadIdx.x == 0) {
        const int end = rows.keys_end(p, rows.first_row + S::kRows - 1);
        const int end_tile = (end + kMlaTile - 1) / kMlaTile;
        job.request = item.request();
        job.request_end = rows.keys_end(p, rows.num_rows);
        job.end = end;
        job.end_tile = item.is_whole() ? end_tile : min(end_tile, item.end_tile());
        job.whole = item.is_whole();
      }
      if (threadIdx.x < S::kRows) {
        const int row = rows.first_row + threadIdx.x, band_row = row / kBandRows * kBandRows;
        row_end[threadIdx.x] = band_row < rows.num_rows ? rows.keys_end(p, row) : 0;
      }
      __syncthreads();
      if (tile < job.end_tile) loader.issue(job, tile);
      rows.template load_query<S::kSteps>(p, quarter * S::kWarpSteps, query);
    }
    RowState state;
    reset(state);
    Output<S> out;
    Joined<S> joined;
#pragma unroll
    for (int j = 0; j < S::kWarpColumns / 8; ++j) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
    joined.reset();

    for (; tile < job.end_tile; ++tile) {
      cp_async_wait<0>();
      __syncthreads();  // the tile is there, and the one before has been used
      const bool more = tile + 1 < job.end_tile;
      if (more) loader.issue(job, tile + 1);
      const int* ends = row_end + warp / kBandWarps * kBandRows;
      if (ends[kBandRows - 1] == 0) continue;  // nothing for this band
      if (job.whole && tile % p.split_tiles == 0 && tile > 0) joined.add(state, out);
      const unsigned char* cache_rows = smem + tile % 2 * S::kTileBytes;
      float s[kOctets][4] = {};
      multiply_keys<T, S>(s, query, cache_rows, quarter * S::kWarpSteps);
      exchange_scores<S>(s, smem);

      const uint32_t present = loader.present(!more);
      const int first_key = tile * kMlaTile;
      const KeySpan keys[2] = {{0, ends[lane_id() / 4]}, {0, ends[lane_id() / 4 + 8]}};
      float correction[2];
      if (first_key + kMlaTile <= ends[0] && present == kAllOctets)
        softmax_step<false>(s, state, correction, scale, false, keys, first_key);
      else
        softmax_step<true>(s, state, correction, scale, false, keys, first_key, present);
      // Maxima seldom grow after the first tiles, and then there is nothing to do: times 1 is exact.
      if (__any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j < S::kWarpColumns / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out[j][e] *= correction[e / 2];
        }
      }
      multiply_values<T, S>(out, s, cache_rows, quarter);
    }
    cp_async_wait<0>();

    WorkWalk<MlaAttentionParams> item(p, start);
    const LaneRows<T, S> rows(p, item, warp / kBandWarps);
    if (job.whole) {
      joined.add(state, out);
      store_rows<T, S>(p, rows, joined, quarter);
    } else {
      store_partial<T, S>(p, item, rows, state, out, quarter);
    }
    const int unit = item.unit(), request = item.request();
    do {
      item.advance();
    } while (job.whole && !item.done() && item.unit() == unit && item.request() == request);
    __syncthreads();  // all have come here, and nobody needs the tiles, the job and where this item began
    if (threadIdx.x == 0) start = item.rest();
    __syncthreads();
  }
}

template <class T, int kKeyDim, int kValueDim, int kBands>
Error launch_bands(MlaAttentionParams p, void* stream) {
  using S = Shape<kKeyDim, kValueDim, kBands>;
  p.unit_rows = S::kRows;
  // Of use: no more CTAs than there can be items.
  const int64_t splits = (p.max_blocks * p.block_size + kMlaSplit - 1) / kMlaSplit;
  const int64_t rows = p.num_tokens * p.num_heads;
  const int64_t items = (rows / S::kRows + p.batch) * (splits > 0 ? splits : 1);
  const int64_t ctas = static_cast<int64_t>(num_sms()) * S::kCtas;
  return launch(mla_attention_mma_kernel<T, kKeyDim, kValueDim, kBands>,
                dim3(static_cast<unsigned>(items < ctas ? items : ctas)), dim3(S::kThreads), S::kBytes,
                stream, p);
}

// The kernels of one pair of dimensions; one file each, so that they build in parallel.
template <int kKeyDim, int kValueDim>
Error launch_dims(const MlaAttentionParams& p, void* stream) {
  const auto go = [&](auto element) {
    using T = decltype(element);
    return p.max_query_len * p.num_heads <= kBandRows ? launch_bands<T, kKeyDim, kValueDim, 1>(p, stream)
                                                      : launch_bands<T, kKeyDim, kValueDim, 2>(p, stream);
  };
  if (p.dtype != p.cache_dtype) return kInvalidValue;
  if (p.dtype == DType::bf16) return go(__nv_bfloat16{});
  return p.dtype == DType::f16 ? go(__half{}) : kInvalidValue;
}
extern template Error launch_dims<576, 512>(const MlaAttentionParams&, void*);
extern template Error launch_dims<288, 256>(const MlaAttentionParams&, void*);
extern template Error launch_dims<80, 64>(const MlaAttentionParams&, void*);

}  // namespace inferx::cuda::mla
