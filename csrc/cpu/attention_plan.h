// How a batch is cut into work items.  Plain host code: no kernel, no thread.  The cut changes no result.
#pragma once
#include <vector>

#include "cpu/attention.h"

namespace inferx::cpu {

struct AttentionPlan {
  std::vector<AttentionItem> items;     // most expensive first
  std::vector<AttentionItem> merges;    // tiles whose splits were spread over several items
  int64_t max_rows = 0, max_heads = 0;  // of the largest items
  int64_t partial_floats = 0;  // `partial` of items and merges is an offset into a buffer of this size
  double cost = 0;             // about the multiply-adds of all items per element of head_dim
};

AttentionPlan plan_attention(const AttentionParams& params, int threads);

}  // namespace inferx::cpu
