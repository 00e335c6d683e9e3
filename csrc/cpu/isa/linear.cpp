#include "cpu/linear.h"

// GCC 12 takes the "undefined" vectors of its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "cpu/isa/linear_direct.h"
#include "cpu/isa/linear_tiled.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef int I4 __attribute__((vector_size(16)));

// One order of additions for every instruction set and every caller.
void group_sums(const float* x, int64_t groups, float* sums, int64_t sums_stride) {
  for (int64_t g = 0; g < groups; ++g, x += kGroup) {
    F4 part[8];
    for (int i = 0; i < 8; ++i) part[i] = load<F4>(x + 4 * i);
    for (int i = 0; i < 4; ++i) part[i] += part[i + 4];
    const F4 sum = (part[0] + part[2]) + (part[1] + part[3]);
    sums[g * sums_stride] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
}

// [rows][k] -> [k][rows], in blocks of four by four.
void pack_panel(const float* x, int64_t x_stride, int rows, int64_t k, float* packed) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* row = x + r * x_stride;
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
      const F4 a = load<F4>(row + i), b = load<F4>(row + x_stride + i);
      const F4 c = load<F4>(row + 2 * x_stride + i), d = load<F4>(row + 3 * x_stride + i);
      const F4 ab_low = __builtin_shuffle(a, b, I4{0, 4, 1, 5}),
               ab_high = __builtin_shuffle(a, b, I4{2, 6, 3, 7});
      const F4 cd_low = __builtin_shuffle(c, d, I4{0, 4, 1, 5}),
               cd_high = __builtin_shuffle(c, d, I4{2, 6, 3, 7});
      const F4 out[4] = {__builtin_shuffle(ab_low, cd_low, I4{0, 1, 4, 5}),
                         __builtin_shuffle(ab_low, cd_low, I4{2, 3, 6, 7}),
                         __builtin_shuffle(ab_high, cd_high, I4{0, 1, 4, 5}),
                         __builtin_shuffle(ab_high, cd_high, I4{2, 3, 6, 7})};
      for (int j = 0; j < 4; ++j) std::memcpy(packed + (i + j) * rows + r, &out[j], 16);
    }
    for (; i < k; ++i) {
      for (int j = 0; j < 4; ++j) packed[i * rows + r + j] = row[j * x_stride + i];
    }
  }
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) packed[i * rows + r] = x[r * x_stride + i];
  }
}

// Calls fn(std::integral_constant-like format) for the run-time format.
template <int index = 0, class Fn>
INFERX_INLINE void with_format(WeightFormat format, const Fn& fn) {
  if constexpr (index < kWeightFormats) {
    if (static_cast<int>(format) == index) return fn(Index<index>{});
    with_format<index + 1>(format, fn);
  }
}

void direct(const LinearParams& params, const float* sums, int64_t first_tile, int64_t last_tile) {
  with_format(params.weight.format, [&](auto format) {
    direct_tiles<static_cast<WeightFormat>(format.v)>(params, sums, first_tile, last_tile);
  });
}

void tiled(const LinearParams& params, const Panel* panels, int panel_count, int64_t tile) {
  with_format(params.weight.format, [&](auto format) {
    tiled_tile<static_cast<WeightFormat>(format.v)>(params, panels, panel_count, tile);
  });
}

}  // namespace

extern const LinearKernels linear_kernels = {kPanelRows, kPanelsPerCall, group_sums,
                                             pack_panel, direct,         tiled};

}  // namespace inferx::cpu::INFERX_ISA
