#include "cpu/linear_int8.h"

#include <algorithm>

#include "cpu/int8_kernels.h"
#include "cpu/norm.h"
#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_INT8_KERNELS(Int8Kernels, int8_kernels)

QuantizedRows::QuantizedRows(void* memory, int64_t rows, int64_t k) : rows(rows), k(k) {
  const int most = int8_kernels().panel_rows;
  panels = (rows + most - 1) / most;
  codes = static_cast<int8_t*>(memory);
  scales = reinterpret_cast<float*>(codes + rows * k);
  offsets = scales + rows * groups();
  sums = reinterpret_cast<int16_t*>(offsets + rows * groups());
}

namespace {

// A second thread is worth its start for no less than this many multiply-adds (of four rows at least: up to
// there the weights' way from memory decides) or elements.
constexpr int64_t kProductsPerThread = 1 << 20, kProductsInTeam = 1 << 17;
constexpr int64_t kElementsPerThread = 1 << 15, kElementsInTeam = 1 << 12;

int64_t grain_of(int64_t work_per_item, int64_t alone, int64_t in_team) {
  return std::max<int64_t>(1, (Team::current() ? in_team : alone) / std::max<int64_t>(1, work_per_item));
}

// Calls body(first, last, tile, next) for blocks of panels and tiles, in parallel; `next` is the tile that
// the thread will most likely take after it, -1 when it is none of this product.
template <class Body>
void for_blocks(const QuantizedRows& x, int64_t tiles, int64_t columns, const Body& body) {
  if (x.rows == 0) return;
  const int64_t most = kInt8RowsPerCall / int8_kernels().panel_rows;
  const int64_t wanted = (4 * get_num_threads() + tiles - 1) / tiles;
  const int64_t least = (x.panels + most - 1) / most;
  const int64_t blocks = std::min(x.panels, std::max(least, wanted));
  const int64_t rows = std::max<int64_t>(4, x.rows / blocks);
  parallel_for(blocks * tiles, grain_of(rows * x.k * columns, kProductsPerThread, kProductsInTeam),
               [&](int64_t begin, int64_t end) {
                 const int64_t range_end = Team::range_end(end);
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t block = item / tiles;
                   const int64_t next = item + 1 < range_end ? (item + 1) % tiles : -1;
                   body(x.panels * block / blocks, x.panels * (block + 1) / blocks, item % tiles, next);
                 }
               });
}

// Calls body(rows' number, panel) for every panel in parallel, `from` filled by row(r).
template <class Row>
void quantize_panels(const QuantizedRows& out, const Row& row) {
  const Int8Kernels& kernels = int8_kernels();
  const int64_t work = kernels.panel_rows * out.k;
  parallel_for(out.panels, grain_of(work, kElementsPerThread, kElementsInTeam),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t start = out.start(i);
                   const int rows = static_cast<int>(out.start(i + 1) - start);
                   const float* from[kMaxInt8PanelRows];
                   for (int r = 0; r < rows; ++r) from[r] = row(start + r);
                   kernels.quantize(from, rows, out.groups(), panel_of(out, i));
                 }
               });
}

}  // namespace

void quantize_rows(const float* x, int64_t x_stride, const QuantizedRows& out) {
  quantize_panels(out, [&](int64_t r) { return x + r * x_stride; });
}

void rms_norm_quantize(const NormQuantizeParams& p) {
  const NormKernels& norm = norm_kernels();
  quantize_panels(p.out, [&](int64_t r) {
    float* x = p.x + r * p.x_stride;
    if (p.residual) {
      norm.fused_add_rms_norm_row(DType::f32, DType::f32, x, p.residual + r * p.residual_stride, p.weight,
                                  p.out.k, p.eps);
    } else {
      norm.rms_norm_row(DType::f32, DType::f32, x, x, p.weight, p.out.k, p.eps);
    }
    return x;
  });
}

void linear_int8(const LinearInt8Params& p) {
  const Int8Kernels& kernels = int8_kernels();
  for_blocks(
      p.x, p.weight.tiles(), kTileColumns, [&](int64_t first, int64_t last, int64_t tile, int64_t next) {
        alignas(64) float totals[kInt8RowsPerCall * kTileColumns];
        const uint8_t* ahead = next >= 0 ? p.weight.tile(next) : Team::upcoming().begin;
        kernels.multiply(p.x, first, last, p.weight, tile, ahead, totals);
        const int64_t row = p.x.start(first), column = tile * kTileColumns;
        kernels.write(totals, p.x.start(last) - row, std::min<int64_t>(kTileColumns, p.weight.n - column),
                      p.bias ? p.bias + column : nullptr, p.out + row * p.out_stride + column, p.out_stride);
      });
}

void gate_up_int8(const GateUpInt8Params& p) {
  static_assert(kGroup == kTileColumns, "a tile of the product is a group of its rows");
  const Int8Kernels& kernels = int8_kernels();
  const ActivationKernels& activation = activation_kernels();
  const int64_t tiles = p.out.k / kTileColumns;
  for_blocks(p.x, tiles, 2 * kTileColumns, [&](int64_t first, int64_t last, int64_t tile, int64_t next) {
    alignas(64) float gate[kInt8RowsPerCall * kTileColumns];
    alignas(64) float up[kInt8RowsPerCall * kTileColumns];
    const int64_t first_row = p.x.start(first), rows = p.x.start(last) - first_row;
    const uint8_t* upcoming = Team::upcoming().begin;
    const auto product = [&](int64_t at, const uint8_t* ahead, float* to) {
      kernels.multiply(p.x, first, last, p.weight, at, ahead, to);
      if (p.bias) kernels.write(to, rows, kTileColumns, p.bias + at * kTileColumns, to, kTileColumns);
    };
    product(tile, p.weight.tile(tiles + tile), gate);
    product(tiles + tile, next >= 0 ? p.weight.tile(next) : upcoming, up);
    activation.activate_and_mul_row(p.activation, DType::f32, gate, gate, up, rows * kTileColumns);
    for (int64_t i = first; i < last; ++i) {
      const int64_t start = p.x.start(i);
      const int count = static_cast<int>(p.x.start(i + 1) - start);
      const float* from[kMaxInt8PanelRows];
      for (int r = 0; r < count; ++r) from[r] = gate + (start - first_row + r) * kTileColumns;
      kernels.quantize(from, count, 1, panel_of(p.out, i, tile));
    }
  });
}

}  // namespace inferx::cpu
