// Rows of a dense table on the device.
#pragma once
#include <cstdint>

#include "kernels/launch.h"

namespace inferx::cuda {

// out[t] = table[ids[t]]; rows of `row_bytes`, `out_stride` and `table_stride` bytes apart.  An id outside
// [0, num_rows) gives a row of zeros: the host cannot look at it.
struct EmbeddingParams {
  char* out;
  const char* table;
  const void* ids;  // [count], int64 or int32
  bool ids_are_64_bit;
  int64_t count, num_rows, row_bytes, out_stride, table_stride;
};
Error launch_embedding(const EmbeddingParams& params, void* stream);

}  // namespace inferx::cuda
