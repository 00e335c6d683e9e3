// The table of attention kernels that every instruction set provides.
#pragma once
#include "cpu/attention.h"
#include "cpu/isa.h"

namespace inferx::cpu {

struct AttentionKernels {
  // Attends for one item; `scratch` holds attention_scratch_floats(...) floats for it, 64-byte aligned.
  void (*attend)(const AttentionParams& params, const AttentionItem& item, float* partials, float* scratch);
  // Folds the partial results of one tile of queries and writes its output.
  void (*merge)(const AttentionParams& params, const AttentionItem& item, float* partials);
  // merge_attn_states for rows (token * num_heads + head) in [begin, end).
  void (*merge_states)(const MergeStatesParams& params, int64_t begin, int64_t end);
};
INFERX_DECLARE_KERNELS(AttentionKernels, attention_kernels)

}  // namespace inferx::cpu
