// Where rows have to begin for copies of several bytes at once.
#pragma once
#include <cstdint>
#include <string>

#include "bindings/check.h"

namespace inferx {

// Whether all rows of t (along its last dimension) begin at multiples of `bytes`.
inline bool is_aligned(const TensorRef& t, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(t.data) % bytes != 0) return false;
  for (int i = 0; i + 1 < t.ndim; ++i) {
    if (t.size(i) > 1 && t.stride(i) * static_cast<int64_t>(dtype_size(t.dtype)) % bytes != 0) return false;
  }
  return true;
}

inline void check_aligned(const char* op, const char* name, const TensorRef& t, int64_t bytes) {
  if (t.numel() == 0 || is_aligned(t, bytes)) return;
  Arg(op, name, t)
      .expected("rows that begin at multiples of " + std::to_string(bytes) + " bytes (address and strides)",
                "shape " + shape_string(t) + " at an address of " +
                    std::to_string(reinterpret_cast<uintptr_t>(t.data) % bytes) + " modulo " +
                    std::to_string(bytes));
}

}  // namespace inferx
