// How the decode kernel's work is cut and dealt out, on the device, because only it knows the lengths.
//
// An item is one split (split_size keys, counted from position 0) of one unit (KV head and tile of 16 query
// rows) of one request.  Items are numbered request by request, unit by unit, split by split, and each has a
// cost; CTA c of G takes those that begin in the c-th G-th of the total.  A request of several splits leaves
// partial results in scratch for combine.cu; where scratch does not suffice for all of them, its units stay
// whole: one CTA takes the splits in order and joins them as combine.cu would.
//
// Latent attention deals its work out likewise: what a request consists of is said by load_decode_request for
// its own parameters (mla_attention/work.cuh).
#pragma once
#include "kernels/attention/kv_tile.cuh"
#include "kernels/attention/request.cuh"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;

// What the end of an item (merging the warps, writing, beginning the next) costs, in tiles of 64 keys.
constexpr int kItemCost = 2;

struct DecodeRequest {
  Request request;
  KeySpan keys;              // seen by some query
  int first_tile, end_tile;  // that hold them
  int first_split, splits;   // likewise; at least one split, which may be empty
  int row_tiles, units;      // 0: the request is not decode.cu's
  int unit_cost;
  int64_t partials;  // rows of scratch: [split][query][head]; 0 for a single split
};

SIMT_DEV DecodeRequest load_decode_request(const PagedAttentionParams& p, int64_t b) {
  DecodeRequest d{};
  d.request = load_request(p, b);
  const int64_t rows = static_cast<int64_t>(d.request.q_len) * p.group;
  if (rows == 0 || rows > decode_rows(p.group)) return d;
  d.keys = visible_keys(p, d.request);
  d.first_tile = d.keys.begin / kTile;
  d.end_tile = d.keys.end > d.keys.begin ? (d.keys.end + kTile - 1) / kTile : d.first_tile;
  d.first_split = d.first_tile / p.split_tiles;
  d.splits = d.end_tile > d.first_tile ? (d.end_tile - 1) / p.split_tiles - d.first_split + 1 : 1;
  d.row_tiles = (static_cast<int>(rows) + kDecodeRows - 1) / kDecodeRows;
  d.units = static_cast<int>(p.num_kv_heads) * d.row_tiles;
  d.unit_cost = d.end_tile - d.first_tile + kItemCost * d.splits;
  d.partials = d.splits > 1 ? static_cast<int64_t>(d.splits) * d.request.q_len * p.num_heads : 0;
  return d;
}

SIMT_DEV bool fits_scratch(const PagedAttentionParams& p, int64_t first_partial, int64_t partials) {
  return p.plan != nullptr && first_partial + partials <= p.max_partials;
}

// Where a CTA's part begins.
struct WorkStart {
  int request;            // batch: nothing to do
  int64_t request_cost;   // of all before that request
  int64_t first_partial;  // likewise
  int64_t begin, end;     // the part
};

// Finds it, with all threads of the CTA.  CTA 0 also notes for combine.cu where each request's partial
// results begin (-1: it has none).
template <int kThreads, class Params>
SIMT_DEV void deal_work(const Params& p, WorkStart& start) {
  SHARED(int64_t, warp_totals, [kThreads / 32][2]);
  const int lane = lane_id(), warp = static_cast<int>(threadIdx.x) / 32, batch = static_cast<int>(p.batch);
  const int share = (batch + kThreads - 1) / kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * share, batch), last = min(first + share, batch);
  int64_t own[2] = {0, 0};
  for (int b = first; b < last; ++b) {
    const DecodeRequest d = load_decode_request(p, b);
    own[0] += static_cast<int64_t>(d.units) * d.unit_cost;
    own[1] += d.partials;
  }
  int64_t before[2], total = 0;
  for (int i = 0; i < 2; ++i) {
    int64_t sum = own[i];
    for (int o = 1; o < 32; o *= 2) {
      const int64_t other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    before[i] = sum - own[i];
    if (lane == 31) warp_totals[warp][i] = sum;
  }
  if (threadIdx.x == 0) start.request = batch;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) {
    total += warp_totals[w][0];
    if (w >= warp) continue;
    for (int i = 0; i < 2; ++i) before[i] += warp_totals[w][i];
  }
  const int64_t begin = total * blockIdx.x / gridDim.x, end = total * (blockIdx.x + 1) / gridDim.x;
  for (int b = first; b < last; ++b) {
    const DecodeRequest d = load_decode_request(p, b);
    const int64_t cost = static_cast<int64_t>(d.units) * d.unit_cost;
    if (begin < end && begin >= before[0] && begin < before[0] + cost)
      start = {b, before[0], before[1], begin, end};
    if (blockIdx.x == 0 && p.plan != nullptr)
      p.plan[b] = d.partials > 0 && fits_scratch(p, before[1], d.partials) ? static_cast<int>(before[1]) : -1;
    before[0] += cost;
    before[1] += d.partials;
  }
  __syncthreads();
}

// The items of a CTA, in order.  Little is kept between them: registers are for the accumulators.
template <class Params>
class WorkWalk {
 public:
  SIMT_DEV WorkWalk(const Params& p, const WorkStart& start)
      : p_(p), request_(start.request), done_(start.request >= p.batch) {
    if (done_) return;
    // The first item that begins at start.begin or later.
    first_partial_ = saturate(start.first_partial);
    DecodeRequest d = load_decode_request(p_, request_);
    const int64_t into = start.begin - start.request_cost;
    unit_ = static_cast<int>(into / d.unit_cost);
    const int rest = static_cast<int>(into - static_cast<int64_t>(unit_) * d.unit_cost);
    int skipped = 0, cost = 0;  // splits
    if (rest > 0) {
      const int per_split = p.split_tiles + kItemCost;
      const int missing =
          d.first_tile - d.first_split * p.split_tiles;  // the first split is shorter by so much
      skipped = is_whole(d) ? d.splits : min((rest + missing + per_split - 1) / per_split, d.splits);
      cost = skipped == d.splits ? d.unit_cost : skipped * per_split - missing;
    }
    left_ = saturate(start.end - start.request_cost - static_cast<int64_t>(unit_) * d.unit_cost - cost);
    if (skipped == d.splits) {
      next_unit(d);
    } else {
      split_ = d.first_split + skipped;
      enter(d);
    }
    done_ = done_ || left_ <= 0;
  }

  SIMT_DEV bool done() const { return done_; }
  SIMT_DEV int request() const { return request_; }
  SIMT_DEV int unit() const { return unit_; }
  SIMT_DEV int split() const { return split_; }
  SIMT_DEV int first_tile() const { return first_tile_; }
  SIMT_DEV int end_tile() const { return end_tile_; }
  // One CTA takes all splits of the unit, in order.
  SIMT_DEV bool is_whole() const { return whole_; }
  // Row of scratch for a query and a head, where the unit is not whole.
  SIMT_DEV int64_t partial(const DecodeRequest& d, int query, int head) const {
    return first_partial_ +
           (static_cast<int64_t>(split_ - d.first_split) * d.request.q_len + query) * p_.num_heads + head;
  }

  // What is left, for a walk that goes on from here: a kernel may have no registers to keep one.
  SIMT_DEV WorkStart rest() const {
    if (done_) return {static_cast<int>(p_.batch), 0, 0, 0, 0};
    const DecodeRequest d = load_decode_request(p_, request_);
    int64_t begin = static_cast<int64_t>(unit_) * d.unit_cost;  // counted from the request
    if (split_ > d.first_split) {
      begin += static_cast<int64_t>(split_ - d.first_split) * (p_.split_tiles + kItemCost) -
               (d.first_tile - d.first_split * p_.split_tiles);
    }
    return {request_, 0, first_partial_, begin, begin + left_};
  }

  SIMT_DEV void advance() {
    DecodeRequest d = load_decode_request(p_, request_);
    left_ -= end_tile_ - first_tile_ + kItemCost;
    if (++split_ < d.first_split + d.splits) {
      enter(d);
      done_ = !whole_ && left_ <= 0;
    } else {
      next_unit(d);
      done_ = done_ || left_ <= 0;
    }
  }

 private:
  SIMT_DEV static int saturate(int64_t x) { return x > INT32_MAX ? INT32_MAX : static_cast<int>(x); }
  SIMT_DEV bool is_whole(const DecodeRequest& d) const {
    return d.splits == 1 || !fits_scratch(p_, first_partial_, d.partials);
  }
  SIMT_DEV void enter(const DecodeRequest& d) {
    whole_ = is_whole(d);
    first_tile_ = max(d.first_tile, split_ * p_.split_tiles);
    end_tile_ =
        static_cast<int>(min(static_cast<int64_t>(d.end_tile), (split_ + int64_t{1}) * p_.split_tiles));
  }
  SIMT_DEV void next_unit(DecodeRequest& d) {
    if (++unit_ == d.units) {
      unit_ = 0;
      do {
        first_partial_ = saturate(first_partial_ + d.partials);
        if (++request_ >= p_.batch) {
          done_ = true;
          return;
        }
        d = load_decode_request(p_, request_);
      } while (d.units == 0);
    }
    split_ = d.first_split;
    enter(d);
  }

  const Params& p_;
  int request_, unit_ = 0, split_ = 0;
  int first_tile_ = 0, end_tile_ = 0;
  int first_partial_ = 0;  // saturated; scratch has fewer rows
  int left_ = 0;           // cost until the next CTA's part, saturated
  bool done_, whole_ = false;
};

}  // namespace inferx::cuda
