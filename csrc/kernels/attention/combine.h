// Joins the partial results that decode.cu left in scratch.
#pragma once
#include "kernels/attention/params.h"

namespace inferx::cuda {

Error launch_combine_splits(const PagedAttentionParams& params, void* stream);

}  // namespace inferx::cuda
