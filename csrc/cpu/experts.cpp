#include "cpu/experts.h"

#include "cpu/expert_groups.h"
#include "cpu/experts_kernels.h"
#include "cpu/scratch.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(ExpertsKernels, experts_kernels)

namespace {

// Memory that a pass may take; a single token may need more.
constexpr int64_t kFloatsPerPass = Scratch::kKept;

int64_t panels_for(int64_t rows) {
  const int64_t most = linear_kernels().panel_rows;
  return (rows + most - 1) / most;
}

// Calls pass(first, count) for `items` in passes of about the same size.
template <class Pass>
void in_passes(int64_t items, int64_t floats_per_item, const Pass& pass) {
  const int64_t most = std::max<int64_t>(1, kFloatsPerPass / floats_per_item);
  const int64_t passes = (items + most - 1) / most;
  for (int64_t i = 0; i < passes; ++i) {
    const int64_t first = items * i / passes;
    pass(first, items * (i + 1) / passes - first);
  }
  thread_scratch().trim();
}

// The pairs (token, j) of a pass, sorted by expert; a sorted pair is a row.
struct SortedPairs {
  std::vector<Group> groups;      // of the experts that were chosen
  std::vector<int32_t> token_of;  // [rows], counted from the pass's first token
  std::vector<int32_t> row_of;    // [tokens * top_k], -1: no expert
  std::vector<int32_t> next_row;  // [experts]

  void sort(const int32_t* ids, int64_t tokens, int64_t top_k, int64_t experts);
};
thread_local SortedPairs sorted_pairs;  // of the calling thread; kept, to save the allocations

void SortedPairs::sort(const int32_t* ids, int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t pairs = tokens * top_k;
  next_row.assign(experts, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    if (ids[i] >= 0) ++next_row[ids[i]];
  }
  groups.clear();
  int64_t rows = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = next_row[e];
    next_row[e] = static_cast<int32_t>(rows);
    if (count > 0) groups.push_back({e, rows, count, panels_for(count)});
    rows += count;
  }
  token_of.resize(rows);
  row_of.resize(pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    row_of[i] = ids[i] < 0 ? -1 : next_row[ids[i]]++;
    if (row_of[i] >= 0) token_of[row_of[i]] = static_cast<int32_t>(i / top_k);
  }
}

// What fused_moe does with one tile of gate and up and one block of panels: bias and activation while they
// are in the cache, and out come panels for the second product.
struct GateUp {
  const FusedMoeParams& p;
  const GroupedPanels& act;
  const LinearKernels& linear;
  const ActivationKernels& activation;

  // into [rows][kTileColumns]
  void multiply(const Group& group, Panels panels, int64_t first, int64_t last, int64_t tile, int64_t part,
                float* totals) const {
    PackedWeight weight = p.w13->matrix(group.expert, part);
    const float* bias = p.w13_bias;
    if (bias) bias += group.expert * p.w13->n() + part * weight.n + tile * kTileColumns;
    weight.data = weight.tile(tile);
    weight.n = std::min<int64_t>(kTileColumns, weight.n - tile * kTileColumns);
    panels.first_row = -panels.start(first);  // so that the block begins at `totals`
    linear.multiply({nullptr, 0, 0, weight, bias, totals, kTileColumns}, panels, first, last, 0);
  }

  void run(const Group& group, const Panels& panels, int64_t first, int64_t last, int64_t tile) const {
    alignas(64) float gate[kRowsPerCall * kTileColumns];
    alignas(64) float up[kRowsPerCall * kTileColumns];
    multiply(group, panels, first, last, tile, 0, gate);
    multiply(group, panels, first, last, tile, 1, up);
    const int64_t first_row = panels.start(first), rows = panels.start(last) - first_row;
    const int64_t columns = std::min<int64_t>(kTileColumns, act.k - tile * kTileColumns);
    if (columns == kTileColumns) {
      activation.activate_and_mul_row(p.activation, DType::f32, gate, gate, up, rows * kTileColumns);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        float* row = gate + r * kTileColumns;
        activation.activate_and_mul_row(p.activation, DType::f32, row, row, up + r * kTileColumns, columns);
      }
    }
    for (int64_t i = first; i < last; ++i) {
      const int64_t start = panels.start(i);
      const int size = static_cast<int>(panels.start(i + 1) - start);
      const float* from[kMaxPanelRows];
      for (int r = 0; r < size; ++r) from[r] = gate + (start - first_row + r) * kTileColumns;
      float* to = act.x_of(group) + start * act.k + tile * kTileColumns * size;
      linear.pack_panel(from, size, columns, to);
      if (act.groups > 0) {  // a group is a tile wide, and the matrix has whole groups
        linear.sum_groups(from, size, 1, act.sums_of(group) + start * act.groups + tile * size);
      }
    }
  }
};
static_assert(kGroup == kTileColumns);

void combine(const FusedMoeParams& p, int64_t first, int64_t tokens, const int32_t* row_of, const float* y) {
  constexpr int64_t kElementsPerThread = 16384;
  const ExpertsKernels& kernels = experts_kernels();
  const int64_t n = p.w2->n();
  parallel_for(tokens, kElementsPerThread / (n * p.top_k) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels.combine(p.out + (first + t) * p.out_stride, y, n, row_of + t * p.top_k,
                      p.topk_weights + (first + t) * p.top_k, p.top_k);
    }
  });
}

int64_t sums_per_row(const PackedExperts& weight) { return weight.has_min() ? weight.k() / kGroup : 0; }

}  // namespace

void fused_moe(const FusedMoeParams& p) {
  const int64_t h = p.w13->k(), i = p.w2->k(), n = p.w2->n();
  const int64_t x_groups = sums_per_row(*p.w13), act_groups = sums_per_row(*p.w2);
  const int64_t wide = std::max(h, n);  // y takes the place of x's panels
  const LinearKernels& linear = linear_kernels();
  const auto tiles = [](int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns; };
  in_passes(p.tokens, p.top_k * (wide + i + x_groups + act_groups), [&](int64_t first, int64_t tokens) {
    SortedPairs& pairs = sorted_pairs;
    pairs.sort(p.topk_ids + first * p.top_k, tokens, p.top_k, p.w13->experts);
    const int64_t rows = static_cast<int64_t>(pairs.token_of.size());
    float* y = thread_scratch().floats(rows * (wide + i + x_groups + act_groups));
    const GroupedPanels x{y, y + rows * (wide + i), h, x_groups};
    const GroupedPanels act{y + rows * wide, x.sums + rows * x_groups, i, act_groups};
    const int32_t* token_of = pairs.token_of.data();
    const auto row_of = [&](const Group& group, int64_t r) {
      return p.x + (first + token_of[group.first_row + r]) * p.x_stride;
    };
    pack_groups(pairs.groups, x, row_of);

    const GateUp gate_up{p, act, linear, activation_kernels()};
    for_each_tile(pairs.groups, tiles(i), 2 * h * kTileColumns,
                  [&](const Group& group, int64_t begin, int64_t end, int64_t tile) {
                    const float* rows_of_x = group.rows == 1 ? row_of(group, 0) : x.x_of(group);
                    const Panels panels{rows_of_x, x.sums_of(group), 0, group.rows, group.panels};
                    gate_up.run(group, panels, begin, end, tile);
                  });
    for_each_tile(pairs.groups, tiles(n), i * kTileColumns,
                  [&](const Group& group, int64_t begin, int64_t end, int64_t tile) {
                    const Panels panels{act.x_of(group), act.sums_of(group), group.first_row, group.rows,
                                        group.panels};
                    const float* bias = p.w2_bias ? p.w2_bias + group.expert * n : nullptr;
                    const LinearParams params{nullptr, 0, 0, p.w2->matrix(group.expert, 0), bias, y, n};
                    linear.multiply(params, panels, begin, end, tile);
                  });
    combine(p, first, tokens, pairs.row_of.data(), y);
  });
}

void batched_linear(const BatchedLinearParams& p) {
  const int64_t k = p.weight->k(), sums = sums_per_row(*p.weight);
  const LinearKernels& linear = linear_kernels();
  in_passes(p.rows, p.weight->experts * (k + sums), [&](int64_t first, int64_t rows) {
    std::vector<Group>& groups = sorted_pairs.groups;
    groups.clear();
    for (int64_t b = 0; b < p.weight->experts; ++b) groups.push_back({b, b * rows, rows, panels_for(rows)});
    const int64_t copied = rows == 1 ? 0 : p.weight->experts * rows * k;
    float* memory = thread_scratch().floats(copied + p.weight->experts * rows * sums);
    const GroupedPanels x{memory, memory + copied, k, sums};
    const auto row_of = [&](const Group& group, int64_t r) {
      return p.x + (first + r) * p.x_strides[0] + group.expert * p.x_strides[1];
    };
    pack_groups(groups, x, row_of);
    const int64_t tiles = p.weight->parts[0].tiles();
    for_each_tile(groups, tiles, k * kTileColumns,
                  [&](const Group& group, int64_t begin, int64_t end, int64_t tile) {
                    const float* from = rows == 1 ? row_of(group, 0) : x.x_of(group);
                    float* to = p.out + first * p.out_strides[0] + group.expert * p.out_strides[1];
                    const PackedWeight weight = p.weight->matrix(group.expert, 0);
                    linear.multiply({nullptr, 0, 0, weight, nullptr, to, p.out_strides[0]},
                                    {from, x.sums_of(group), 0, rows, group.panels}, begin, end, tile);
                  });
  });
}

}  // namespace inferx::cpu
