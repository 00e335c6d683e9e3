// What the routing ops take, the same on every device.
#pragma once
#include "dtype.h"

namespace inferx::moe {

// The device keeps a row in the registers of a warp, and a lane keeps one of the chosen experts or one group.
constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 32;
constexpr int kMaxGroups = 32;

enum class Scoring : uint8_t { softmax, sigmoid };

struct RoutingParams {
  float* weights;      // [tokens, top_k]
  int32_t* ids;        // [tokens, top_k]
  const void* logits;  // `tokens` rows of `experts` contiguous elements of `dtype`
  const float* bias;   // [experts], added to the scores that choose; null: none
  int64_t tokens, row_stride;
  int32_t experts, top_k;
  int32_t groups, top_groups;  // neighbouring experts form a group; experts outside the best groups are out
  DType dtype;
  Scoring scoring;
  bool renormalize;
  float scale;
};

}  // namespace inferx::moe
