// How the tensor core kernel's work is cut: see attention/work.cuh, which deals it out.
//
// A unit is a tile of unit_rows packed query rows (query position * heads + head), an item one split of a
// unit.  Requests of few rows leave the splits' results in scratch; the units of others, and those for which
// scratch does not suffice, are whole: one CTA walks over all of their keys.
#pragma once
#include "kernels/attention/work.cuh"
#include "kernels/mla_attention/params.h"
#include "simt/simt.h"

namespace inferx::cuda {

constexpr int kMlaTile = 32;  // keys in shared memory at a time

SIMT_DEV DecodeRequest load_decode_request(const MlaAttentionParams& p, int64_t b) {
  DecodeRequest d{};
  d.request = load_request(p, b);
  const int rows = d.request.q_len * p.group;
  if (rows == 0) return d;
  d.keys = visible_keys(p, d.request);
  d.end_tile = (d.keys.end + kMlaTile - 1) / kMlaTile;
  d.splits = d.end_tile > 0 ? (d.end_tile - 1) / p.split_tiles + 1 : 1;
  d.row_tiles = d.units = (rows + p.unit_rows - 1) / p.unit_rows;
  d.unit_cost = d.end_tile + kItemCost * d.splits;
  d.partials = d.splits > 1 && rows <= p.split_rows ? int64_t{d.splits} * rows : 0;
  return d;
}

SIMT_DEV bool fits_scratch(const MlaAttentionParams& p, int64_t first_partial, int64_t partials) {
  return partials > 0 && fits_scratch(static_cast<const PagedAttentionParams&>(p), first_partial, partials);
}

// The tile of rows of a unit.  The first rows of a prompt see few keys and the last ones many: taking them by
// turns from both ends gives all CTAs the same share.
SIMT_DEV int row_tile_of(int unit, int row_tiles) {
  return unit % 2 == 0 ? unit / 2 : row_tiles - 1 - unit / 2;
}

}  // namespace inferx::cuda
