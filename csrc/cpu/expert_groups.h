// Rows in groups, each group with a matrix of its own: their panels, and how the work is dealt to threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/linear.h"
#include "cpu/parallel.h"

namespace inferx::cpu {

struct Group {
  int64_t expert;
  int64_t first_row, rows;  // among all groups' rows; at least one
  int64_t panels;
};

// Equal pieces that a group's work is cut into, and what one of them costs.
struct Share {
  int64_t items, cost;
};

// Calls body(group, item) for the items of share(group) of every group.  Threads take ranges of about the
// same cost, and `grain` of it at least; an item belongs to the range that it begins in.
template <class ShareOf, class Body>
void deal(const std::vector<Group>& groups, int64_t grain, const ShareOf& share_of, const Body& body) {
  int64_t total = 0;
  for (const Group& group : groups) {
    const Share share = share_of(group);
    total += share.items * share.cost;
  }
  parallel_for(total, grain, [&](int64_t begin, int64_t end) {
    int64_t at = 0;  // where the group's first item begins
    for (const Group& group : groups) {
      if (at >= end) return;
      const Share share = share_of(group);
      int64_t item = begin > at ? (begin - at + share.cost - 1) / share.cost : 0;
      for (; item < share.items && at + item * share.cost < end; ++item) body(group, item);
      at += share.items * share.cost;
    }
  });
}

// The grain for items whose cost counts rows, at `weights` multiply-adds a row.
inline int64_t grain_of_rows(int64_t weights) { return std::max<int64_t>(1, kWorkPerThread / weights); }

// The panels of all groups' rows of k elements, at the rows' places in `x` and `sums`.
struct GroupedPanels {
  float* x;     // [rows, k]
  float* sums;  // [rows, groups of 32], where a matrix has minima
  int64_t k, groups;
  float* x_of(const Group& group) const { return x + group.first_row * k; }
  float* sums_of(const Group& group) const { return sums + group.first_row * groups; }
};

// Packs the rows; row_of(group, r) is the group's r-th.  A single row is a panel already, and stays where it
// is.
template <class RowOf>
void pack_groups(const std::vector<Group>& groups, const GroupedPanels& panels, const RowOf& row_of) {
  const LinearKernels& kernels = linear_kernels();
  const auto share_of = [&](const Group& group) {
    return Share{group.rows > 1 || panels.groups > 0 ? group.panels : 0, group.rows / group.panels};
  };
  deal(groups, grain_of_rows(4 * panels.k), share_of, [&](const Group& group, int64_t panel) {
    const int64_t start = group.rows * panel / group.panels;
    const int rows = static_cast<int>(group.rows * (panel + 1) / group.panels - start);
    const float* from[kMaxPanelRows];
    for (int r = 0; r < rows; ++r) from[r] = row_of(group, start + r);
    if (group.rows > 1) kernels.pack_panel(from, rows, panels.k, panels.x_of(group) + start * panels.k);
    if (panels.groups > 0) {
      kernels.sum_groups(from, rows, panels.groups, panels.sums_of(group) + start * panels.groups);
    }
  });
}

// Calls body(group, first panel, last panel, tile) for all tiles and panels, which come in blocks: as large
// as the kernel takes, smaller when there would be too few for the threads.  weights: of a tile.
template <class Body>
void for_each_tile(const std::vector<Group>& groups, int64_t tiles, int64_t weights, const Body& body) {
  if (groups.empty()) return;
  const int64_t panels_per_call = linear_kernels().panels_per_call;
  const int64_t all_tiles = tiles * static_cast<int64_t>(groups.size());
  const int64_t wanted = (4 * get_num_threads() + all_tiles - 1) / all_tiles;
  const auto blocks_of = [&](const Group& group) {
    const int64_t least = (group.panels + panels_per_call - 1) / panels_per_call;
    return std::min(group.panels, std::max(least, wanted));
  };
  // Up to about four rows the weights' way from memory is what costs.
  const auto share_of = [&](const Group& group) {
    const int64_t blocks = blocks_of(group);
    return Share{blocks * tiles, std::max<int64_t>(4, group.rows / blocks)};
  };
  deal(groups, grain_of_rows(weights), share_of, [&](const Group& group, int64_t item) {
    const int64_t blocks = blocks_of(group), block = item / tiles;
    body(group, group.panels * block / blocks, group.panels * (block + 1) / blocks, item % tiles);
  });
}

}  // namespace inferx::cpu
