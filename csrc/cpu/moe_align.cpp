#include "cpu/moe_align.h"

#include <algorithm>

namespace inferx::cpu {

void moe_align_block_size(const moe::AlignParams& p) {
  int32_t next[moe::kMaxAlignedExperts] = {};  // counts first, then where an expert's next pair goes
  const auto known = [&](int32_t expert) { return expert >= 0 && expert < p.experts; };
  for (int64_t i = 0; i < p.pairs; ++i) {
    if (known(p.topk_ids[i])) ++next[p.topk_ids[i]];
  }
  int32_t end = 0;
  for (int32_t e = 0; e < p.experts; ++e) {
    const int32_t begin = end, blocks = (next[e] + p.block_size - 1) / p.block_size;
    std::fill_n(p.expert_ids + begin / p.block_size, blocks, e);
    end += blocks * p.block_size;
    next[e] = begin;
  }
  std::fill(p.expert_ids + end / p.block_size, p.expert_ids + p.max_blocks, -1);
  std::fill(p.sorted_token_ids, p.sorted_token_ids + p.max_sorted, static_cast<int32_t>(p.pairs));
  for (int64_t i = 0; i < p.pairs; ++i) {
    if (known(p.topk_ids[i])) p.sorted_token_ids[next[p.topk_ids[i]]++] = static_cast<int32_t>(i);
  }
  *p.num_tokens_post_padded = end;
}

}  // namespace inferx::cpu
