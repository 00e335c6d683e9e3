#include "cpu/attention_plan.h"

#include <algorithm>

namespace inferx::cpu {
namespace {

// Reading and packing one key costs about as much as multiplying it with this many rows.
constexpr double kKeyOverheadRows = 16;
// Items per thread that make the end of a step ragged by at most a few percent.
constexpr int kItemsPerThread = 4;
constexpr int64_t kMinRows = 12;
// Partial results beyond this (64 MiB) would leave the cache; whole tiles are used instead.
constexpr int64_t kMaxPartialFloats = int64_t{16} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Request {
  int64_t q_len, seq_len, queries_per_tile;
};

Request request_of(const AttentionParams& p, int64_t b, int64_t rows_per_tile) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  return {p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b], p.seq_lens[b],
          std::max<int64_t>(rows_per_tile / group, 1)};
}

int64_t choose_rows(const AttentionParams& p, int threads) {
  int64_t rows = kAttentionRows;
  if (threads == 1) return rows;
  for (; rows > kMinRows; rows /= 2) {
    int64_t tiles = 0;
    for (int64_t b = 0; b < p.batch && tiles < threads * kItemsPerThread; ++b) {
      const Request r = request_of(p, b, rows);
      tiles += ceil_div(r.q_len, r.queries_per_tile) * p.num_kv_heads;
    }
    if (tiles >= threads * kItemsPerThread) break;
  }
  return rows;
}

// The tile's splits that some query sees, and its cost.
double bound_tile(const AttentionParams& p, const Request& r, AttentionItem& tile) {
  const int64_t shift = r.seq_len - r.q_len + 1;  // a query's end of visible keys, less its index
  const int64_t end = std::max<int64_t>(shift + tile.first_query + tile.num_queries - 1, 0);
  const int64_t begin = p.window > 0 ? std::max<int64_t>(shift + tile.first_query - p.window, 0) : 0;
  tile.first_split = begin / kAttentionSplit;
  tile.end_split = std::max(ceil_div(end, kAttentionSplit), tile.first_split);
  const double rows = static_cast<double>(tile.num_queries * (p.num_heads / p.num_kv_heads));
  return static_cast<double>(std::max<int64_t>(end - begin, 1)) * (rows + kKeyOverheadRows);
}

}  // namespace

AttentionPlan plan_attention(const AttentionParams& p, int threads) {
  AttentionPlan plan;
  const int64_t rows_per_tile = choose_rows(p, threads), group = p.num_heads / p.num_kv_heads;
  std::vector<std::pair<double, AttentionItem>> tiles;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Request r = request_of(p, b, rows_per_tile);
    for (int64_t first = 0; first < r.q_len; first += r.queries_per_tile) {
      AttentionItem tile{b, 0, first, std::min(r.queries_per_tile, r.q_len - first), 0, 0, -1};
      const double cost = bound_tile(p, r, tile);
      plan.max_rows = std::max(plan.max_rows, tile.num_queries * group);
      plan.cost += cost * static_cast<double>(p.num_kv_heads);
      for (tile.kv_head = 0; tile.kv_head < p.num_kv_heads; ++tile.kv_head) tiles.emplace_back(cost, tile);
    }
  }
  if (threads > 1) {
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
  }
  plan.items.reserve(tiles.size());
  const double limit = plan.cost / (threads * kItemsPerThread);
  for (auto& [cost, tile] : tiles) {
    const int64_t splits = tile.end_split - tile.first_split;
    const int64_t split_floats = tile.num_queries * group * attention_partial_floats(p.head_dim);
    if (threads == 1 || splits <= 1 || cost <= limit ||
        plan.partial_floats + splits * split_floats > kMaxPartialFloats) {
      plan.items.push_back(tile);
      continue;
    }
    tile.partial = plan.partial_floats;
    plan.merges.push_back(tile);
    const int64_t step =
        std::max<int64_t>(static_cast<int64_t>(static_cast<double>(splits) * limit / cost), 1);
    for (int64_t split = tile.first_split; split < tile.end_split; split += step) {
      AttentionItem part = tile;
      part.first_split = split;
      part.end_split = std::min(split + step, tile.end_split);
      part.partial = plan.partial_floats + (split - tile.first_split) * split_floats;
      plan.items.push_back(part);
    }
    plan.partial_floats += splits * split_floats;
  }
  return plan;
}

}  // namespace inferx::cpu
