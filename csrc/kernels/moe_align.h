// Token-expert pairs in the order of experts, on the device.  csrc/cpu/moe_align.h has the same for the CPU.
#pragma once
#include "kernels/launch.h"
#include "moe_align_params.h"

namespace inferx::cuda {

Error launch_moe_align(const moe::AlignParams& params, void* stream);

}  // namespace inferx::cuda
