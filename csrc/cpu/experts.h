// Stacks of packed matrices, and what mixtures of experts compute with them.
//
// Rows that chose the same expert are a group: they become panels, and a group's panels go through the
// multiplication kernels of linear.  So a row's result is the one that linear gives with the expert's matrix,
// bit for bit, whatever else is in the batch.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/activation.h"
#include "cpu/packed_weight.h"

namespace inferx::cpu {

// `experts` times the same parts, one after the other in memory; a part has whole tiles and a type of its
// own.
struct PackedExperts {
  int64_t experts = 0;
  int64_t stride = 0;               // bytes from an expert to the next
  std::vector<PackedWeight> parts;  // of expert 0; `n` and `k` are the same in all

  int64_t k() const { return parts[0].k; }
  int64_t n() const { return parts[0].n * static_cast<int64_t>(parts.size()); }
  bool has_min() const {
    for (const PackedWeight& part : parts) {
      if (cpu::has_min(part.format)) return true;
    }
    return false;
  }
  PackedWeight matrix(int64_t expert, int64_t part) const {
    PackedWeight weight = parts[part];
    weight.data += expert * stride;
    return weight;
  }
};

// out[t] = sum over j in order of topk_weights[t, j] * (w2[e] act(w13[e] x[t] + w13_bias[e]) + w2_bias[e])
// with e = topk_ids[t, j]; nothing is added for e = -1.
struct FusedMoeParams {
  const float* x;  // [tokens, w13.k()], rows x_stride elements apart
  int64_t tokens, x_stride;
  const PackedExperts* w13;   // gate and up
  const PackedExperts* w2;    // one part
  const float* w13_bias;      // [experts, w13.n()] or null
  const float* w2_bias;       // [experts, w2.n()] or null
  const float* topk_weights;  // [tokens, top_k]
  const int32_t* topk_ids;    // [tokens, top_k], each -1 or an expert
  int64_t top_k;
  GatedActivation activation;
  float* out;  // [tokens, w2.n()], rows out_stride elements apart
  int64_t out_stride;
};
void fused_moe(const FusedMoeParams& params);

// out[t, b] = weight[b] x[t, b]
struct BatchedLinearParams {
  const float* x;  // [rows, weight.experts, weight.k()]
  int64_t rows, x_strides[2];
  const PackedExperts* weight;  // one part
  float* out;                   // [rows, weight.experts, weight.n()]
  int64_t out_strides[2];
};
void batched_linear(const BatchedLinearParams& params);

}  // namespace inferx::cpu
