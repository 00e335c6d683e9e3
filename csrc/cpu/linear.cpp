#include "cpu/linear.h"

#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(LinearKernels, linear_kernels)

namespace {

int64_t grain_for(int64_t rows, int64_t weights_per_item) {
  return std::max<int64_t>(
      1, kWorkPerThread / std::max<int64_t>(1, std::max<int64_t>(rows, 4) * weights_per_item));
}

// Rows [first, first + rows) of x as panels.  A single row is one already, and stays where it is.
Panels pack_panels(const LinearParams& p, int64_t first, int64_t rows, const LinearKernels& kernels) {
  const int64_t k = p.weight.k, groups = has_min(p.weight.format) ? k / kGroup : 0;
  const int64_t copied = rows == 1 ? 0 : rows * k;
  float* x = thread_scratch().floats(copied + rows * groups);
  float* sums = x + copied;
  const float* source = p.x + first * p.x_stride;
  Panels panels{copied ? x : source, sums, first, rows, (rows + kernels.panel_rows - 1) / kernels.panel_rows};
  parallel_for(panels.count, grain_for(kernels.panel_rows, k * 4), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = panels.start(i);
      const int size = static_cast<int>(panels.start(i + 1) - start);
      const float* from[kMaxPanelRows];
      for (int r = 0; r < size; ++r) from[r] = source + (start + r) * p.x_stride;
      if (copied) kernels.pack_panel(from, size, k, x + start * k);
      if (groups) kernels.sum_groups(from, size, groups, sums + start * groups);
    }
  });
  return panels;
}

// Panels go to the kernel in blocks: as large as it takes, smaller when there would be too few for the
// threads.
void multiply(const LinearParams& p, const Panels& panels, const LinearKernels& kernels) {
  const int64_t tiles = p.weight.tiles();
  const int64_t wanted = (4 * get_num_threads() + tiles - 1) / tiles;
  const int64_t least = (panels.count + kernels.panels_per_call - 1) / kernels.panels_per_call;
  const int64_t blocks = std::min(panels.count, std::max(least, wanted));
  const int64_t grain = grain_for(panels.rows / blocks, p.weight.k * kTileColumns);
  parallel_for(blocks * tiles, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t block = item / tiles;
      kernels.multiply(p, panels, panels.count * block / blocks, panels.count * (block + 1) / blocks,
                       item % tiles);
    }
  });
}

}  // namespace

void linear(const LinearParams& p) {
  constexpr int64_t kRowsPerPass = 960;  // bounds the copy of x
  const LinearKernels& kernels = linear_kernels();
  for (int64_t first = 0; first < p.m; first += kRowsPerPass) {
    multiply(p, pack_panels(p, first, std::min(kRowsPerPass, p.m - first), kernels), kernels);
  }
  thread_scratch().trim();
}

}  // namespace inferx::cpu
