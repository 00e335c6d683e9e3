#pragma once
#include <cstdint>

#include "cpu/packed_weight.h"

namespace inferx::cpu {

// out[t] = row ids[t] of the table in float32.  Ids have been checked.
void embedding(const PackedWeight& table, const int64_t* ids, int64_t count, float* out, int64_t row_stride);
void embedding(const PackedWeight& table, const int32_t* ids, int64_t count, float* out, int64_t row_stride);

}  // namespace inferx::cpu
