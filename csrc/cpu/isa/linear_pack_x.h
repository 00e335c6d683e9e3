// Rows of x, rearranged into panels (see Panels).
#pragma once
#include "cpu/isa/linear_simd.h"
#include "cpu/packed_weight.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef int I4 __attribute__((vector_size(16)));

// Four rows by four k from `k` on: packed[i * rows + j] = row j, k + i.
INFERX_INLINE void transpose4(const float* const* x, int64_t k, int rows, float* packed) {
  const F4 a = load<F4>(x[0] + k), b = load<F4>(x[1] + k);
  const F4 c = load<F4>(x[2] + k), d = load<F4>(x[3] + k);
  constexpr I4 low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
  const F4 ab_low = __builtin_shuffle(a, b, low), ab_high = __builtin_shuffle(a, b, high);
  const F4 cd_low = __builtin_shuffle(c, d, low), cd_high = __builtin_shuffle(c, d, high);
  const F4 out[4] = {__builtin_shuffle(ab_low, cd_low, first), __builtin_shuffle(ab_low, cd_low, second),
                     __builtin_shuffle(ab_high, cd_high, first), __builtin_shuffle(ab_high, cd_high, second)};
  for (int i = 0; i < 4; ++i) std::memcpy(packed + i * rows, &out[i], sizeof out[i]);
}

// [rows][k] -> [k][rows].
void pack_panel(const float* const* x, int rows, int64_t k, float* packed) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* const from[4] = {x[r], x[r + 1], x[r + 2], x[r + 3]};
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) transpose4(from, i, rows, packed + i * rows + r);
    for (; i < k; ++i) {
      for (int j = 0; j < 4; ++j) packed[i * rows + r + j] = from[j][i];
    }
  }
  for (; r < rows; ++r) {
    const float* from = x[r];
    for (int64_t i = 0; i < k; ++i) packed[i * rows + r] = from[i];
  }
}

// sums[g * rows + r] = sum of group g of row r: the same order of additions on every instruction set.
void sum_groups(const float* const* x, int rows, int64_t groups, float* sums) {
  for (int r = 0; r < rows; ++r) {
    const float* row = x[r];
    for (int64_t g = 0; g < groups; ++g, row += kGroup) {
      F4 part[8];
      for (int i = 0; i < 8; ++i) part[i] = load<F4>(row + 4 * i);
      for (int i = 0; i < 4; ++i) part[i] += part[i + 4];
      const F4 sum = (part[0] + part[2]) + (part[1] + part[3]);
      sums[g * rows + r] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    }
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
