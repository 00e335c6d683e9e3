#include "cpu/linear.h"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(LinearKernels, linear_kernels)

namespace {

// Memory of the calling thread that its next call uses again, up to a size worth keeping.
class Scratch {
 public:
  float* floats(int64_t count) {
    if (count > size_) {
      memory_.reset();  // first, so that the two are never held at once
      size_ = 0;
      memory_.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t{64})));
      size_ = count;
    }
    return memory_.get();
  }
  void trim() {
    constexpr int64_t kKept = int64_t{16} << 20;  // floats: 64 MB
    if (size_ > kKept) {
      memory_.reset();
      size_ = 0;
    }
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t size_ = 0;
};
thread_local Scratch scratch;

// Below this many multiply-adds per thread a second thread costs more (waking it: some microseconds) than it
// saves.
constexpr int64_t kWorkPerThread = 1 << 17;

int64_t grain_for(int64_t work_per_item) {
  return std::max<int64_t>(1, kWorkPerThread / std::max<int64_t>(1, work_per_item));
}

void linear_direct(const LinearParams& p, const LinearKernels& kernels) {
  float* sums = nullptr;
  if (has_min(p.weight.format)) {
    const int64_t groups = p.weight.k / kGroup;
    sums = scratch.floats(p.m * groups);
    for (int64_t row = 0; row < p.m; ++row) {
      kernels.group_sums(p.x + row * p.x_stride, groups, sums + row * groups, 1);
    }
  }
  parallel_for(p.weight.tiles(), grain_for(p.m * p.weight.k * kTileColumns),
               [&](int64_t begin, int64_t end) { kernels.direct(p, sums, begin, end); });
}

// Rows [first, first + rows) of x, cut into panels of nearly equal size.
std::vector<Panel> pack_panels(const LinearParams& p, int64_t first, int64_t rows,
                               const LinearKernels& kernels) {
  const int64_t k = p.weight.k, groups = has_min(p.weight.format) ? k / kGroup : 0;
  const int64_t count = (rows + kernels.panel_rows - 1) / kernels.panel_rows;
  float* packed = scratch.floats(rows * (k + groups));
  std::vector<Panel> panels(count);
  parallel_for(count, grain_for(kernels.panel_rows * k * 16), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = rows * i / count;
      const int size = static_cast<int>(rows * (i + 1) / count - start);
      float* x = packed + start * k;
      float* sums = packed + rows * k + start * groups;
      const float* source = p.x + (first + start) * p.x_stride;
      kernels.pack_panel(source, p.x_stride, size, k, x);
      for (int r = 0; groups && r < size; ++r) {
        kernels.group_sums(source + r * p.x_stride, groups, sums + r, size);
      }
      panels[i] = {x, sums, first + start, size};
    }
  });
  return panels;
}

void linear_tiled(const LinearParams& p, const LinearKernels& kernels) {
  constexpr int64_t kRowsPerPass = 960;  // bounds the copy of x
  const int64_t tiles = p.weight.tiles();
  for (int64_t first = 0; first < p.m; first += kRowsPerPass) {
    const int64_t rows = std::min(kRowsPerPass, p.m - first);
    const std::vector<Panel> panels = pack_panels(p, first, rows, kernels);
    // Blocks of panels: as large as the kernel takes, smaller when there would be too few for the threads.
    const int64_t count = static_cast<int64_t>(panels.size());
    const int64_t wanted = (4 * get_num_threads() + tiles - 1) / tiles;
    const int64_t least = (count + kernels.panels_per_call - 1) / kernels.panels_per_call;
    const int64_t blocks = std::min(count, std::max(least, wanted));
    const int64_t work = rows * p.weight.k * kTileColumns / blocks;
    parallel_for(blocks * tiles, grain_for(work), [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t block = item / tiles, from = count * block / blocks, to = count * (block + 1) / blocks;
        kernels.tiled(p, panels.data() + from, static_cast<int>(to - from), item % tiles);
      }
    });
  }
}

}  // namespace

void linear(const LinearParams& p) {
  if (p.m == 0) return;
  const LinearKernels& kernels = linear_kernels();
  if (p.m <= kDirectRows) {
    linear_direct(p, kernels);
  } else {
    linear_tiled(p, kernels);
  }
  scratch.trim();
}

}  // namespace inferx::cpu
