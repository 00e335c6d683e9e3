// Token-expert pairs in the order of experts.
#pragma once
#include "moe_align_params.h"

namespace inferx::cpu {

void moe_align_block_size(const moe::AlignParams& params);

}  // namespace inferx::cpu
