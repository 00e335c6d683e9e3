// The arguments of apply_token_bitmask, the same for the CPU and the device.
#pragma once
#include <cstdint>

#include "dtype.h"
#include "rows.h"

namespace inferx {

// Bit j of word w of mask m says whether row m of the logits, or row rows[m], may take token 32 w + j.
struct TokenBitmaskParams {
  void* logits;  // [num_rows, vocab], changed in place
  DType dtype;
  int64_t num_rows, vocab, row_stride;  // strides in elements; the last dimensions are contiguous
  const uint32_t* bitmask;              // [count, words]
  int64_t count, words, mask_stride;
  const void* rows;  // [count], int64 or int32; null: mask m is row m's
  bool rows_are_64_bit;

  // The row that mask m belongs to.
  INFERX_HOST_DEVICE int64_t row_of(int64_t m) const {
    if (!rows) return m;
    return rows_are_64_bit ? static_cast<const int64_t*>(rows)[m] : static_cast<const int32_t*>(rows)[m];
  }
};

}  // namespace inferx
