#include "cpu/int8_kernels.h"

// GCC 12 takes the "undefined" vectors of its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "cpu/isa/int8/panel.h"
#include "cpu/isa/int8/quantize.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

template <WeightFormat format, int Rows = kInt8PanelRows>
void multiply_panel(int rows, const QuantizedPanel& x, const uint8_t* tile, int64_t blocks, NextTile& next,
                    float* totals) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return multiply_panel<format, Rows - 1>(rows, x, tile, blocks, next, totals);
  }
  Int8Panel<format, Rows>::run(x, tile, blocks, next, totals);
}

template <WeightFormat format>
void multiply_format(const QuantizedRows& x, int64_t first, int64_t last, const PackedWeight& weight,
                     int64_t tile, const uint8_t* next, float* totals) {
  const int64_t blocks = weight.blocks(), bytes = blocks * block_bytes(format), first_row = x.start(first);
  const uint8_t* data = weight.tile(tile);
  int64_t steps = 0;
  for (int64_t i = first; i < last; ++i)
    steps += blocks * passes(static_cast<int>(x.start(i + 1) - x.start(i)));
  NextTile ahead(next, bytes, steps);
  for (int64_t i = first; i < last; ++i) {
    const int64_t start = x.start(i);
    multiply_panel<format>(static_cast<int>(x.start(i + 1) - start), panel_of(x, i), data, blocks, ahead,
                           totals + (start - first_row) * kTileColumns);
  }
}

template <int index = 0>
void dispatch(const QuantizedRows& x, int64_t first, int64_t last, const PackedWeight& weight, int64_t tile,
              const uint8_t* next, float* totals) {
  if constexpr (index < kWeightFormats) {
    constexpr auto format = static_cast<WeightFormat>(index);
    if constexpr (!is_float(format)) {
      if (weight.format == format) return multiply_format<format>(x, first, last, weight, tile, next, totals);
    }
    dispatch<index + 1>(x, first, last, weight, tile, next, totals);
  }
}

void multiply(const QuantizedRows& x, int64_t first, int64_t last, const PackedWeight& weight, int64_t tile,
              const uint8_t* next, float* totals) {
  dispatch(x, first, last, weight, tile, next, totals);
}

void write(const float* totals, int64_t rows, int64_t columns, const float* bias, float* out,
           int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r, totals += kTileColumns, out += out_stride) {
    if (columns == kTileColumns) {
      for (int c = 0; c < kTileColumns; c += kLanes) {
        const F value = load<F>(totals + c);
        store(out + c, bias ? value + load<F>(bias + c) : value);
      }
    } else {
      for (int64_t c = 0; c < columns; ++c) out[c] = bias ? totals[c] + bias[c] : totals[c];
    }
  }
}

}  // namespace

extern const Int8Kernels int8_kernels = {kInt8PanelRows, quantize, multiply, write};

}  // namespace inferx::cpu::INFERX_ISA
