// What moe_align_block_size takes, the same on every device.
#pragma once
#include <cstdint>

namespace inferx::moe {

constexpr int kMaxAlignedExperts = 512;

// The counting sort of `pairs` token-expert pairs by expert, each expert's share rounded up to whole blocks.
struct AlignParams {
  int32_t* sorted_token_ids;        // [max_sorted]: numbers of pairs; `pairs` where a block has none
  int32_t* expert_ids;              // [max_blocks]: each block's expert; -1 behind the last block
  int32_t* num_tokens_post_padded;  // [1]
  const int32_t* topk_ids;          // [pairs]; what is not in [0, experts) is left out
  int64_t pairs, max_sorted, max_blocks;
  int32_t experts, block_size;
};

}  // namespace inferx::moe
