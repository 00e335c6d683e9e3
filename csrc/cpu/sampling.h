// Sampling on the CPU.  What is done to each of the many thousand logits of a row is in the kernels; what is
// left to do with the few that matter is plain C++.
#pragma once
#include "cpu/isa.h"
#include "sampling_params.h"

namespace inferx::cpu {

struct RowMaximum {
  float value;    // -inf for an empty row
  int64_t index;  // the first that is as large
  bool nan;       // there is one: the rest means nothing
};

constexpr int64_t kCollectRoom = 16;

// Rows are float32 here; z = (x - max) * scale.
struct SamplingKernels {
  void (*to_float)(DType dtype, float* out, const void* x, int64_t n);
  RowMaximum (*maximum)(const float* x, int64_t n);
  // Sum of the weights that are at least `least`.
  int64_t (*total)(const float* x, int64_t n, float max, float scale, int64_t least);
  // The weights, 0 for those below `least`.
  void (*weights)(int64_t* out, const float* x, int64_t n, float max, float scale, int64_t least);
  // Ids, from `first` on and in order, of the z that are at least `least_z`; returns how many.  `ids` has
  // room for kCollectRoom more.
  int64_t (*collect)(int32_t* ids, const float* x, int64_t n, float max, float scale, float least_z,
                     int32_t first);
  // Ids, from `first` on, of the x above `limit`.
  int64_t (*collect_above)(int32_t* ids, const float* x, int64_t n, float limit, int32_t first);
  // min((half_max - x / 2) * bins_per, count - 1), rounded down: falls as x grows.
  void (*bins)(int32_t* out, const float* x, int64_t n, float half_max, float bins_per, int32_t count);
  int64_t (*count_above)(const float* x, int64_t n, float limit);
};
INFERX_DECLARE_KERNELS(SamplingKernels, sampling_kernels)

void sample_tokens(const sampling::SampleParams& params);
void apply_logits_processors(const sampling::ProcessorParams& params);
void token_logprobs(const sampling::LogprobParams& params);

}  // namespace inferx::cpu
