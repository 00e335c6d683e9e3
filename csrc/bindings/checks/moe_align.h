// The checks of moe_align_block_size, the same on every device.
#pragma once
#include <string>

#include "bindings/check.h"
#include "moe_align_params.h"

namespace inferx {

inline moe::AlignParams check_moe_align(const char* op, const TensorRef& sorted_token_ids,
                                        const TensorRef& expert_ids, const TensorRef& num_tokens_post_padded,
                                        const TensorRef& topk_ids, int64_t num_experts, int64_t block_size) {
  Sym tokens{"T"}, top_k{"k"};
  const Arg ids(op, "topk_ids", topk_ids);
  ids.dtype({DType::i32}).shape({tokens, top_k}).contiguous();
  if (num_experts < 1 || num_experts > moe::kMaxAlignedExperts) {
    fail_expected(op, "num_experts", "1 to " + std::to_string(moe::kMaxAlignedExperts),
                  std::to_string(num_experts));
  }
  if (block_size < 1 || block_size > INT32_MAX) {
    fail_expected(op, "block_size", "1 to 2147483647", std::to_string(block_size));
  }
  // Every expert that has a pair may leave all but one place of a block empty.
  const int64_t pairs = topk_ids.numel();
  const int64_t most = pairs + (pairs < num_experts ? pairs : num_experts) * (block_size - 1);
  if (most > INT32_MAX) ids.expected("pairs that pad to less than 2^31", std::to_string(most));

  const NamedTensor outputs[] = {{"sorted_token_ids", &sorted_token_ids},
                                 {"expert_ids", &expert_ids},
                                 {"num_tokens_post_padded", &num_tokens_post_padded}};
  for (const NamedTensor& out : outputs) {
    Arg(op, out.name, *out.tensor).dtype({DType::i32}).ndim(1).contiguous().same_device("topk_ids", topk_ids);
    check_disjoint(op, out.name, *out.tensor, "topk_ids", topk_ids);
  }
  check_all_disjoint(op, {outputs[0], outputs[1], outputs[2]});
  Arg(op, "num_tokens_post_padded", num_tokens_post_padded).shape({1});
  const int64_t most_blocks = (most + block_size - 1) / block_size;
  if (sorted_token_ids.size(0) < most) {
    Arg(op, "sorted_token_ids", sorted_token_ids)
        .expected("at least " + std::to_string(most) + " elements", shape_string(sorted_token_ids));
  }
  if (sorted_token_ids.size(0) > INT32_MAX) {
    Arg(op, "sorted_token_ids", sorted_token_ids)
        .expected("less than 2^31 elements", shape_string(sorted_token_ids));
  }
  if (expert_ids.size(0) < most_blocks) {
    Arg(op, "expert_ids", expert_ids)
        .expected("at least " + std::to_string(most_blocks) + " elements", shape_string(expert_ids));
  }
  return {sorted_token_ids.ptr<int32_t>(),
          expert_ids.ptr<int32_t>(),
          num_tokens_post_padded.ptr<int32_t>(),
          topk_ids.ptr<const int32_t>(),
          pairs,
          sorted_token_ids.size(0),
          expert_ids.size(0),
          static_cast<int32_t>(num_experts),
          static_cast<int32_t>(block_size)};
}

}  // namespace inferx
