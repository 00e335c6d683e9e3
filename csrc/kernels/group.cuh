// Rows read and written in groups of eight elements: one or two 16-byte accesses where the row is aligned,
// single elements where it is not and at a row's end.  Either way a thread holds the same elements, so the
// order of a reduction, and with it a row's bits, does not depend on alignment.
#pragma once
#include <cstring>

#include "kernels/dtype_dispatch.h"
#include "rows.h"
#include "simt/simt.h"

namespace inferx::cuda {

constexpr int kGroup = 8;

// Where row `row` begins, in elements.  Divisions are 32-bit unless there are more rows than that.
SIMT_DEV int64_t row_offset(const Rows& rows, int64_t row) {
  if (rows.ndim <= 1) return rows.ndim == 0 ? 0 : row * rows.stride[0];
  if (rows.count > INT32_MAX) return rows.offset(row);
  uint32_t rest = static_cast<uint32_t>(row);
  int64_t at = 0;
  for (int i = rows.ndim - 1; i > 0; --i) {
    const uint32_t size = static_cast<uint32_t>(rows.size[i]);
    at += rest % size * rows.stride[i];
    rest /= size;
  }
  return at + rest * rows.stride[0];
}

// Whether all rows of a tensor begin at multiples of 16 bytes.
inline bool rows_aligned(const void* data, const Rows& rows, size_t item) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(data);
  for (int i = 0; i < rows.ndim; ++i) bits |= static_cast<uintptr_t>(rows.stride[i]) * item;
  return bits % 16 == 0;
}

// Elements [i, i + 8) of a row of n, as floats; zeros beyond its end.
template <class T>
SIMT_DEV void load_group(float (&values)[kGroup], const T* row, int64_t i, int64_t n, bool aligned) {
  if (aligned && i + kGroup <= n) {
    constexpr int kVectors = kGroup * sizeof(T) / 16;
    T items[kGroup];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4 bits = ld16(row + i + v * (16 / sizeof(T)));
      memcpy(static_cast<void*>(items + v * (16 / sizeof(T))), &bits, 16);
    }
#pragma unroll
    for (int k = 0; k < kGroup; ++k) values[k] = to_float(items[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) values[k] = i + k < n ? to_float(row[i + k]) : 0.0f;
  }
}

template <class T>
SIMT_DEV void store_group(T* row, int64_t i, int64_t n, bool aligned, const float (&values)[kGroup]) {
  if (aligned && i + kGroup <= n) {
    constexpr int kVectors = kGroup * sizeof(T) / 16;
    T items[kGroup];
#pragma unroll
    for (int k = 0; k < kGroup; ++k) items[k] = from_float<T>(values[k]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint4 bits;
      memcpy(&bits, items + v * (16 / sizeof(T)), 16);
      st16(row + i + v * (16 / sizeof(T)), bits);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if (i + k < n) row[i + k] = from_float<T>(values[k]);
    }
  }
}

}  // namespace inferx::cuda
