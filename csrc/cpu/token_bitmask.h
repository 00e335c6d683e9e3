// Masks of tokens, a bit each, laid on logits.
#pragma once
#include "cpu/isa.h"
#include "token_bitmask_params.h"

namespace inferx::cpu {

struct TokenBitmaskKernels {
  // x[i] = -inf for the i < n whose bit is 0: bit i % 32 of mask[i / 32], or 0 from mask[words] on.  The
  // others keep their bits.
  void (*mask_row)(DType dtype, void* x, int64_t n, const uint32_t* mask, int64_t words);
};
INFERX_DECLARE_KERNELS(TokenBitmaskKernels, token_bitmask_kernels)

// The rows that `rows` names exist, and none is named twice.
void apply_token_bitmask(const TokenBitmaskParams& params);

}  // namespace inferx::cpu
