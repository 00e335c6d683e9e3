// Masks of tokens laid on logits, on the device.  csrc/cpu/token_bitmask.h has the same for the CPU.
#pragma once
#include "kernels/launch.h"
#include "token_bitmask_params.h"

namespace inferx::cuda {

// A mask whose row does not exist does nothing: the host cannot look at it.
Error launch_apply_token_bitmask(const TokenBitmaskParams& params, void* stream);

}  // namespace inferx::cuda
