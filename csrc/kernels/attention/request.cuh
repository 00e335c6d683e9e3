// One request of a batch as the attention kernels see it.  Lengths on the device cannot be checked by the
// host: they are clamped here, so that all kernels stay in bounds and agree whatever the tensors hold.
#pragma once
#include "kernels/attention/params.h"
#include "simt/simt.h"

namespace inferx::cuda {

constexpr int64_t kMaxKeys = INT32_MAX - 1024;  // ends of tiles and splits fit an int

struct Request {
  int first_token, q_len;  // its rows of query and out
  int seq_len;
};

SIMT_DEV int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

SIMT_DEV int first_token(const PagedAttentionParams& p, int64_t b) {
  return static_cast<int>(clamp(p.cu_seqlens_q[b], 0, p.num_tokens));
}

SIMT_DEV Request load_request(const PagedAttentionParams& p, int64_t b) {
  const int first = first_token(p, b);
  const int end = static_cast<int>(clamp(p.cu_seqlens_q[b + 1], first, p.num_tokens));
  return {first, end - first,
          static_cast<int>(clamp(p.seq_lens[b], 0, clamp(p.max_blocks * p.block_size, 0, kMaxKeys)))};
}

// The keys [begin, end) that query i of a request sees.
struct KeySpan {
  int begin, end;
};
SIMT_DEV KeySpan visible_keys(const PagedAttentionParams& p, const Request& request, int i) {
  if (!p.causal) return {0, request.seq_len};
  const int end = request.seq_len - request.q_len + i + 1;
  if (end <= 0) return {0, 0};
  return {p.window > 0 && end > p.window ? end - static_cast<int>(p.window) : 0, end};
}

// The keys that some query of the request sees.
SIMT_DEV KeySpan visible_keys(const PagedAttentionParams& p, const Request& request) {
  if (request.q_len == 0) return {0, 0};
  const KeySpan first = visible_keys(p, request, 0), last = visible_keys(p, request, request.q_len - 1);
  return {first.begin, last.end};
}

}  // namespace inferx::cuda
