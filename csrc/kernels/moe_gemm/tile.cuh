// Which pairs and which columns a CTA takes.
//
// CTAs are numbered column tile first: those of a tile of pairs run side by side and share its rows of the
// input in the L2 cache, and so do the few tiles of one expert its weights.
#pragma once
#include "kernels/dtype_dispatch.h"
#include "kernels/moe_gemm/params.h"
#include "simt/simt.h"

namespace inferx::cuda::moe_gemm {

using namespace simt;

template <int kTokens>
struct TokenTile {
  int64_t input_at[kTokens];  // where the pair's row of the input begins, in elements; -1: padding
  int pair[kTokens];          // -1: padding
  float scale[kTokens];
};

SIMT_DEV bool has_expert(const MoeGemmParams& p, int id) { return id >= 0 && id < p.num_experts; }

template <int kTokens>
SIMT_DEV void put_pair(const MoeGemmParams& p, TokenTile<kTokens>& tile, int i, int pair) {
  const bool there = pair >= 0 && pair < p.num_pairs;
  tile.pair[i] = there ? pair : -1;
  tile.input_at[i] = there ? pair / static_cast<int>(p.pairs_per_row) * p.input_stride : -1;
  tile.scale[i] = there && p.topk_weights != nullptr ? p.topk_weights[pair] : 1.0f;
}

// Tile number `index` of moe_align_block_size.  Returns its expert, -1 where there is no such tile.
template <int kTokens>
SIMT_DEV int sorted_tile(const MoeGemmParams& p, int index, TokenTile<kTokens>& tile) {
  const int64_t first = static_cast<int64_t>(index) * kTokens;
  if (first >= *p.num_tokens_post_padded || first + kTokens > p.num_places) return -1;
  const int expert = p.expert_ids[index];
  if (!has_expert(p, expert)) return -1;
  for (int i = threadIdx.x; i < kTokens; i += blockDim.x) put_pair(p, tile, i, p.sorted_token_ids[first + i]);
  return expert;
}

// Without a sort: the pairs of an expert in order are cut into tiles, and the CTAs of a tile's first pair
// take it, so that an expert's weights are read once however many of the pairs are its own.  All warps look
// through the ids, and so agree on whether the CTA has something to do; the first one writes.
template <int kTokens>
SIMT_DEV int own_tile(const MoeGemmParams& p, int pair, TokenTile<kTokens>& tile) {
  const int expert = p.topk_ids[pair], pairs = static_cast<int>(p.num_pairs), lane = lane_id();
  if (!has_expert(p, expert)) return -1;
  const auto same_expert = [&](int first) {  // of 32 pairs, as bits
    const int other = first + lane;
    return __ballot_sync(~0u, other < pairs && p.topk_ids[other] == expert);
  };
  const int mine = pair / 32 * 32;
  int rank = 0;  // of the pair among those of its expert
  for (int first = 0; first < mine; first += 32) rank += __popc(same_expert(first));
  rank += __popc(same_expert(mine) & ((1u << pair % 32) - 1));
  if (rank % kTokens != 0) return -1;
  if (threadIdx.x < 32) {
    int found = 0;
    for (int first = mine; first < pairs && found < kTokens; first += 32) {
      const unsigned later = first == mine ? ~0u << pair % 32 : ~0u, same = same_expert(first) & later;
      const int i = found + __popc(same & ((1u << lane) - 1));
      if ((same >> lane & 1) != 0 && i < kTokens) put_pair(p, tile, i, first + lane);
      found += __popc(same);
    }
    for (int i = found + lane; i < kTokens; i += 32) put_pair(p, tile, i, -1);
  }
  return expert;
}

// Fills in the tile, which the caller's next barrier shows to all threads, and returns its expert; -1: the
// whole CTA has nothing to do.
template <int kTokens>
SIMT_DEV int find_tile(const MoeGemmParams& p, int index, TokenTile<kTokens>& tile) {
  return p.sorted_token_ids != nullptr ? sorted_tile(p, index, tile) : own_tile(p, index, tile);
}

// Zeros for the pairs without an expert, which are in no tile: each lies in reach of one tile's number.
template <class T, int kTokens>
SIMT_DEV void clear_missing(const MoeGemmParams& p, int index, int64_t first_column, int64_t end_column) {
  const bool sorted = p.sorted_token_ids != nullptr;
  const int64_t first = sorted ? static_cast<int64_t>(index) * kTokens : index;
  const int64_t end = min(first + (sorted ? kTokens : 1), p.num_pairs);
  for (int64_t pair = first + threadIdx.x; pair < end; pair += blockDim.x) {
    if (has_expert(p, p.topk_ids[pair])) continue;
    T* out = static_cast<T*>(p.out) + pair * p.out_stride;
    for (int64_t column = first_column; column < min(end_column, p.columns); ++column) {
      out[column] = from_float<T>(0.0f);
    }
  }
}

// CTAs to start, from shapes alone: those without a tile return at once.
inline int64_t grid_size(const MoeGemmParams& p, int columns_of_tile) {
  const int64_t tiles = p.sorted_token_ids != nullptr ? p.num_blocks : p.num_pairs;
  return tiles * ((p.columns + columns_of_tile - 1) / columns_of_tile);
}

}  // namespace inferx::cuda::moe_gemm
