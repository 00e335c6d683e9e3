// What the values in cu_seqlens_q, seq_lens and block_tables have to be: only the CPU can look at them.
#pragma once
#include <algorithm>
#include <string>

#include "bindings/check.h"
#include "cpu/attention.h"

namespace inferx {

inline void check_lengths(const char* op, const int32_t* cu_seqlens_q, const int32_t* seq_lens, int64_t batch,
                          int64_t num_tokens, int64_t capacity) {
  if (cu_seqlens_q[0] != 0) fail_expected(op, "cu_seqlens_q", "0 at [0]", std::to_string(cu_seqlens_q[0]));
  for (int64_t b = 0; b < batch; ++b) {
    if (cu_seqlens_q[b + 1] < cu_seqlens_q[b]) {
      fail_expected(op, "cu_seqlens_q", "values that do not decrease",
                    std::to_string(cu_seqlens_q[b + 1]) + " after " + std::to_string(cu_seqlens_q[b]) +
                        " at " + "[" + std::to_string(b + 1) + "]");
    }
    if (seq_lens[b] < 0 || seq_lens[b] > capacity) {
      fail_expected(
          op, "seq_lens",
          "lengths from 0 to " + std::to_string(capacity) + " (the width of block_tables x block size)",
          std::to_string(seq_lens[b]) + " at " + "[" + std::to_string(b) + "]");
    }
  }
  if (cu_seqlens_q[batch] != num_tokens) {
    fail_expected(
        op, "cu_seqlens_q",
        "T=" + std::to_string(num_tokens) + " (the tokens of query) at " + "[" + std::to_string(batch) + "]",
        std::to_string(cu_seqlens_q[batch]));
  }
}

// Only the blocks that some query reads: the entries of others may be anything.
inline void check_block_ids(const char* op, const cpu::AttentionParams& p, int64_t num_blocks) {
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t q_len = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b], seq_len = p.seq_lens[b];
    if (q_len == 0) continue;
    const int64_t first_key = p.window > 0 ? std::max<int64_t>(seq_len - q_len + 1 - p.window, 0) : 0;
    const int32_t* table = p.block_tables + b * p.block_tables_stride;
    for (int64_t i = first_key / p.block_size; i * p.block_size < seq_len; ++i) {
      if (table[i] < 0 || table[i] >= num_blocks) {
        fail_expected(
            op, "block_tables", "block ids from 0 to " + std::to_string(num_blocks - 1),
            std::to_string(table[i]) + " at [" + std::to_string(b) + ", " + std::to_string(i) + "]");
      }
    }
  }
}

}  // namespace inferx
