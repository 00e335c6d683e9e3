// Where the keys and values of a tile lie, and asking for the next ones in time.
//
// Rows of the cache are scattered pieces of a few lines each, too short for the hardware's prefetchers.  So
// every loop that reads a tile also asks for its share of the next one, evenly spread: a core can wait for
// some two dozen lines at a time, and a prefetch beyond them stalls it.
#pragma once
#include "cpu/isa/attention_state.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

alignas(64) const float kZeroRow[kAttentionMaxHeadDim] = {};  // stands in for keys that are not there

// The rows of one tile and KV head.  Only keys [begin, end), counted from `start`, are seen by some query;
// the others are rows of zeros.
template <class T>
struct TileRows {
  int64_t start;
  int begin, end;
  const T* key[kTile];
  const T* value[kTile];
};

// Rows to ask for while something else is done in `steps` equal steps.
template <class T>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const T* const* rows, int count, int64_t length)
      : rows_(rows), left_(count), bytes_(length * static_cast<int64_t>(sizeof(T))) {}

  void spread_over(int steps) { rate_ = steps > 0 ? (left_ * kOne + steps - 1) / steps : 0; }

  INFERX_INLINE void step() {
    for (due_ += rate_; due_ >= kOne && left_ > 0; due_ -= kOne, --left_, ++rows_) {
      const char* row = reinterpret_cast<const char*>(*rows_);
      for (int64_t at = 0; at < bytes_; at += kLineBytes) __builtin_prefetch(row + at);
    }
  }

 private:
  static constexpr int kOne = 1 << 16, kLineBytes = 64;
  const T* const* rows_ = nullptr;
  int left_ = 0;
  int64_t bytes_ = 0;
  int due_ = 0, rate_ = 0;  // in kOne-th rows
};

// The blocks of one request, seen from the item's first KV head.
template <class T>
class CacheRows {
 public:
  CacheRows(const AttentionParams& p, const AttentionItem& item)
      : p_(p),
        table_(p.block_tables + item.request * p.block_tables_stride),
        keys_(static_cast<const T*>(p.key_cache) + item.first_kv_head * p.key_stride_head),
        values_(static_cast<const T*>(p.value_cache) + item.first_kv_head * p.value_stride_head) {}

  // The tile that starts at `start`, of which keys at positions [first, last) are seen, for the item's first
  // head. Entries of the block table for other keys are not read.
  INFERX_NOINLINE void find(int64_t start, int64_t first, int64_t last, TileRows<T>& rows) const {
    const T* zeros = reinterpret_cast<const T*>(kZeroRow);
    const int begin = clamp_to_tile(first - start), end = clamp_to_tile(last - start);
    rows.start = start;
    rows.begin = begin;
    rows.end = end;
    for (int i = 0; i < begin; ++i) rows.key[i] = rows.value[i] = zeros;
    for (int i = end; i < kTile; ++i) rows.key[i] = rows.value[i] = zeros;
    int64_t block = (start + begin) / p_.block_size, slot = (start + begin) % p_.block_size;
    for (int i = begin; i < end;) {
      const int64_t id = table_[block++];
      const T* key = keys_ + id * p_.key_stride_block + slot * p_.key_stride_slot;
      const T* value = values_ + id * p_.value_stride_block + slot * p_.value_stride_slot;
      for (; slot < p_.block_size && i < end; ++slot, ++i) {
        rows.key[i] = key;
        rows.value[i] = value;
        key += p_.key_stride_slot;
        value += p_.value_stride_slot;
      }
      slot = 0;
    }
  }

  // The same rows for the next head.
  INFERX_NOINLINE void next_head(const TileRows<T>& rows, TileRows<T>& next) const {
    next = rows;
    for (int i = rows.begin; i < rows.end; ++i) next.key[i] += p_.key_stride_head;
    for (int i = rows.begin; i < rows.end; ++i) next.value[i] += p_.value_stride_head;
  }

 private:
  const AttentionParams& p_;
  const int32_t* table_;
  const T* keys_;
  const T* values_;
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
