#include "cpu/attention_plan.h"

#include <algorithm>

namespace inferx::cpu {
namespace {

// Reading and packing one key costs about as much as multiplying it with this many rows.
constexpr double kKeyOverheadRows = 16;
// Items per thread that make the end of a step ragged by at most a few percent.
constexpr int kItemsPerThread = 4;
constexpr int64_t kMinRows = 12;
// Items of up to kMinRows rows wait for memory and take several KV heads, but no more than keep a tile of
// keys and values in the second-level cache while the next one is on its way.
constexpr int64_t kTileBytes = 128 << 10;
// Partial results beyond this (64 MiB) would leave the cache; whole tiles are used instead.
constexpr int64_t kMaxPartialFloats = int64_t{16} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The cut that all requests share.
struct Cut {
  int64_t rows;   // at most, of one KV head
  int64_t heads;  // KV heads of an item whose rows are few
};

// A request's queries [first, first + count) against all that they see.
struct Tile {
  AttentionItem item;
  double cost;  // per KV head
};

class Planner {
 public:
  Planner(const AttentionParams& p, int threads)
      : p_(p), threads_(threads), group_(p.num_heads / p.num_kv_heads), wanted_(threads * kItemsPerThread) {}

  AttentionPlan plan() {
    AttentionPlan plan;
    std::vector<Tile> tiles = cut_into_tiles(choose_cut());
    for (const Tile& tile : tiles) {
      plan.cost += tile.cost;
      plan.max_rows = std::max(plan.max_rows, tile.item.num_queries * group_);
      plan.max_heads = std::max(plan.max_heads, tile.item.num_kv_heads);
    }
    if (threads_ > 1) {
      std::stable_sort(tiles.begin(), tiles.end(),
                       [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
    }
    plan.items.reserve(tiles.size());
    for (const Tile& tile : tiles) add(tile, plan);
    return plan;
  }

 private:
  int64_t q_len(int64_t b) const { return p_.cu_seqlens_q[b + 1] - p_.cu_seqlens_q[b]; }
  int64_t queries_per_tile(int64_t rows) const { return std::max<int64_t>(rows / group_, 1); }

  // With few threads to feed, large tiles; otherwise down to what still shares its reads among some rows.
  Cut choose_cut() const {
    const int64_t item_bytes = static_cast<int64_t>(dtype_size(p_.cache_dtype));
    const int64_t head_bytes = kAttentionTile * (p_.head_dim + p_.value_dim) * item_bytes;
    const int64_t rows =
        std::min<int64_t>(kAttentionRows, kAttentionRowFloats / (p_.head_dim + p_.value_dim));
    Cut cut{rows, std::clamp<int64_t>(kTileBytes / head_bytes, 1, kAttentionItemHeads)};
    cut.heads = std::min(cut.heads, p_.num_kv_heads);
    if (threads_ == 1) return cut;
    while (cut.rows > kMinRows && count_items(cut) < wanted_) cut.rows /= 2;
    while (cut.heads > 1 && count_items(cut) < wanted_) cut.heads /= 2;
    return cut;
  }

  // Splits count as items: a tile of few rows can be spread over them.
  int64_t count_items(const Cut& cut) const {
    int64_t items = 0;
    const int64_t queries = queries_per_tile(cut.rows);
    for (int64_t b = 0; b < p_.batch && items < wanted_; ++b) {
      const bool few_rows = std::min(queries, q_len(b)) * group_ <= kMinRows;
      const int64_t splits = few_rows ? std::max<int64_t>(ceil_div(p_.seq_lens[b], kAttentionSplit), 1) : 1;
      items += ceil_div(q_len(b), queries) * ceil_div(p_.num_kv_heads, few_rows ? cut.heads : 1) * splits;
    }
    return items;
  }

  std::vector<Tile> cut_into_tiles(const Cut& cut) const {
    std::vector<Tile> tiles;
    const int64_t queries = queries_per_tile(cut.rows);
    for (int64_t b = 0; b < p_.batch; ++b) {
      for (int64_t first = 0; first < q_len(b); first += queries) {
        Tile tile = bounded_tile(b, first, std::min(queries, q_len(b) - first));
        const double cost_per_head = tile.cost;
        const int64_t heads = tile.item.num_queries * group_ <= kMinRows ? cut.heads : 1;
        for (int64_t head = 0; head < p_.num_kv_heads; head += heads) {
          tile.item.first_kv_head = head;
          tile.item.num_kv_heads = std::min(heads, p_.num_kv_heads - head);
          tile.cost = cost_per_head * static_cast<double>(tile.item.num_kv_heads);
          tiles.push_back(tile);
        }
      }
    }
    return tiles;
  }

  // With the splits that some query of the tile sees.
  Tile bounded_tile(int64_t b, int64_t first, int64_t count) const {
    const int64_t shift = p_.seq_lens[b] - q_len(b) + 1;  // a query's end of visible keys, less its index
    const int64_t end = std::max<int64_t>(shift + first + count - 1, 0);
    const int64_t begin = p_.window > 0 ? std::max<int64_t>(shift + first - p_.window, 0) : 0;
    const int64_t first_split = begin / kAttentionSplit;
    const int64_t end_split = std::max(ceil_div(end, kAttentionSplit), first_split);
    const double rows = static_cast<double>(count * group_);
    return {{b, 0, 0, first, count, first_split, end_split, -1},
            static_cast<double>(std::max<int64_t>(end - begin, 1)) * (rows + kKeyOverheadRows)};
  }

  // The tile as one item, or its splits over several where it alone would keep a thread busy for too long.
  void add(const Tile& tile, AttentionPlan& plan) const {
    const AttentionItem& whole = tile.item;
    const double limit = plan.cost / wanted_;
    const int64_t splits = whole.end_split - whole.first_split;
    const int64_t split_floats =
        whole.num_kv_heads * whole.num_queries * group_ * attention_partial_floats(p_.value_dim);
    if (threads_ == 1 || splits <= 1 || tile.cost <= limit ||
        plan.partial_floats + splits * split_floats > kMaxPartialFloats) {
      plan.items.push_back(whole);
      return;
    }
    plan.merges.push_back(whole);
    plan.merges.back().partial = plan.partial_floats;
    const int64_t step =
        std::max<int64_t>(static_cast<int64_t>(static_cast<double>(splits) * limit / tile.cost), 1);
    for (int64_t split = whole.first_split; split < whole.end_split; split += step) {
      AttentionItem part = whole;
      part.first_split = split;
      part.end_split = std::min(split + step, whole.end_split);
      part.partial = plan.partial_floats + (split - whole.first_split) * split_floats;
      plan.items.push_back(part);
    }
    plan.partial_floats += splits * split_floats;
  }

  const AttentionParams& p_;
  int threads_;
  int64_t group_, wanted_;
};

}  // namespace

AttentionPlan plan_attention(const AttentionParams& params, int threads) {
  return Planner(params, threads).plan();
}

}  // namespace inferx::cpu
