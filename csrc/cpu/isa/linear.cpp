#include "cpu/linear.h"

// GCC 12 takes the "undefined" vectors of its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "cpu/isa/linear_codes.h"
#include "cpu/isa/linear_decoded.h"
#include "cpu/isa/linear_pack_x.h"
#include "cpu/isa/linear_slice.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// The rows of a call share what is decoded or read of a tile; their totals take 15 KB.
constexpr int kPanelsPerCall = kRowsPerCall / kPanelRows;
static_assert(kPanelRows <= kMaxPanelRows);

// Decoding into the buffer costs a store and a load per vector: it pays from this many rows on (measured),
// and for codes whose decoding takes more instructions than the multiply-adds leave room for.
template <WeightFormat format>
constexpr int64_t buffer_from_rows() {
  constexpr Codes codes = traits_of(format).codes;
  constexpr int panels = kLanes == 16 ? 2 : 1;
  if (codes == Codes::c5 || codes == Codes::c6) return panels * kPanelRows + 1;
  return int64_t{1} << 62;
}

// fn(Index<Rows>{}) for rows = Rows.
template <int Rows = kPanelRows, class Fn>
INFERX_INLINE void with_rows(int rows, const Fn& fn) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return with_rows<Rows - 1>(rows, fn);
  }
  fn(Index<Rows>{});
}

template <int index = 0, class Fn>
INFERX_INLINE void with_format(WeightFormat format, const Fn& fn) {
  if constexpr (index < kWeightFormats) {
    if (static_cast<int>(format) == index) return fn(Index<index>{});
    with_format<index + 1>(format, fn);
  }
}

// Adds the bias to `totals` [rows][kTileColumns] of one tile and writes the columns that the matrix has.
void write_rows(const LinearParams& p, const float* totals, int64_t rows, int64_t first_row, int64_t tile) {
  const int64_t first = tile * kTileColumns;
  const int64_t columns = p.weight.n - first < kTileColumns ? p.weight.n - first : kTileColumns;
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = totals + r * kTileColumns;
    float* to = p.out + (first_row + r) * p.out_stride + first;
    if (columns == kTileColumns) {
      for (int c = 0; c < kTileColumns; c += kLanes) {
        const F value = load<F>(from + c);
        store(to + c, p.bias ? value + load<F>(p.bias + first + c) : value);
      }
    } else {
      for (int64_t c = 0; c < columns; ++c) to[c] = p.bias ? from[c] + p.bias[first + c] : from[c];
    }
  }
}

template <WeightFormat format, int Rows>
void multiply_packed(const uint8_t* tile, bool first_use, const float* x, const float* sums, int64_t k,
                     float* totals) {
  const PanelRows<Rows> panel = {x, sums};
  for (int column = 0; column < kTileColumns; column += kSlice) {
    const PackedSlice<format> weights = {tile, column, first_use && column == 0};
    Slice<PackedSlice<format>, Rows> slice = {weights, panel, {}};
    slice.run(k);
    slice.store_totals(totals + column);
  }
}

template <int unit, bool minima, int Rows>
void multiply_decoded(const Decoded& decoded, const float* x, const float* sums, int64_t count,
                      float* totals) {
  const PanelRows<Rows> panel = {x, sums};
  for (int column = 0; column < kTileColumns; column += kSlice) {
    const DecodedSlice<unit, minima> weights = {decoded, column};
    Slice<DecodedSlice<unit, minima>, Rows> slice = {weights, panel, {}};
    slice.load_totals(totals + column);
    slice.run(count);
    slice.store_totals(totals + column);
  }
}

template <WeightFormat format>
void multiply_format(const LinearParams& p, const Panels& panels, int64_t first, int64_t last,
                     int64_t tile_index) {
  constexpr int unit = traits_of(format).unit;
  const uint8_t* tile = p.weight.tile(tile_index);
  const int64_t k = p.weight.k, groups = k / kGroup, first_row = panels.start(first);
  alignas(64) float totals[kPanelsPerCall * kPanelRows * kTileColumns];
  // fn(rows, x, sums, totals) for every panel, from k0 on.
  const auto for_panels = [&](int64_t k0, const auto& fn) __attribute__((always_inline)) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t start = panels.start(i);
      const int rows = static_cast<int>(panels.start(i + 1) - start);
      const float* sums = has_min(format) ? panels.sums + start * groups + k0 / kGroup * rows : nullptr;
      fn(rows, panels.x + start * k + k0 * rows, sums, totals + (start - first_row) * kTileColumns);
    }
  };
  const int64_t rows = panels.start(last) - first_row;
  if (rows < buffer_from_rows<format>()) {
    for_panels(0, [&](int n, const float* x, const float* sums, float* to) {
      with_rows(n, [&](auto r) { multiply_packed<format, r.v>(tile, to == totals, x, sums, k, to); });
    });
  } else if constexpr (!is_float(format)) {
    Decoded decoded;
    for (int64_t i = 0; i < rows * kTileColumns; i += kLanes) store(totals + i, F{});
    for (int64_t k0 = 0; k0 < k; k0 += kStretch) {
      const int64_t count = k - k0 < kStretch ? k - k0 : kStretch;
      decode<format>(tile, k0, count, decoded);
      for_panels(k0, [&](int n, const float* x, const float* sums, float* to) {
        with_rows(n,
                  [&](auto r) { multiply_decoded<unit, has_min(format), r.v>(decoded, x, sums, count, to); });
      });
    }
  }
  write_rows(p, totals, rows, panels.first_row + first_row, tile_index);
}

void multiply(const LinearParams& params, const Panels& panels, int64_t first, int64_t last, int64_t tile) {
  with_format(params.weight.format, [&](auto format) {
    multiply_format<static_cast<WeightFormat>(format.v)>(params, panels, first, last, tile);
  });
}

}  // namespace

extern const LinearKernels linear_kernels = {kPanelRows, kPanelsPerCall, pack_panel, sum_groups, multiply};

}  // namespace inferx::cpu::INFERX_ISA
