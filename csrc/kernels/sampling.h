// Sampling on the device.  See csrc/cpu/sampling.h for the same ops on the CPU.
#pragma once
#include "kernels/launch.h"
#include "sampling_params.h"

namespace inferx::cuda {

Error launch_sample_tokens(const sampling::SampleParams& params, void* stream);
Error launch_apply_logits_processors(const sampling::ProcessorParams& params, void* stream);
Error launch_token_logprobs(const sampling::LogprobParams& params, void* stream);

}  // namespace inferx::cuda
