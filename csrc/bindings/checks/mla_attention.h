// The checks of latent attention (mla_attention, concat_and_cache_mla), the same on every device: all but
// values that only the CPU can look at.
#pragma once
#include <cmath>
#include <initializer_list>
#include <string>

#include "bindings/check.h"
#include "bindings/checks/paged_attention.h"

namespace inferx {

constexpr int64_t kMlaMaxDim = 1024;

struct MlaAttentionArgs {
  const TensorRef &out, &query, &kv_cache, &block_tables, &cu_seqlens_q, &seq_lens;
  const OptionalTensor& lse;
  double scale;
  int64_t value_dim;

  int64_t num_tokens() const { return query.size(0); }
  int64_t num_heads() const { return query.size(1); }
  int64_t key_dim() const { return query.size(2); }
  int64_t num_blocks() const { return kv_cache.size(0); }
  int64_t block_size() const { return kv_cache.size(1); }
  int64_t batch() const { return seq_lens.size(0); }
};

inline void check_mla_attention(const char* op, const MlaAttentionArgs& args,
                                std::initializer_list<DType> query_dtypes,
                                std::initializer_list<DType> cache_dtypes) {
  const auto& [out, query, kv_cache, block_tables, cu_seqlens_q, seq_lens, lse, scale, value_dim] = args;
  Sym T{"T"}, heads{"heads"};
  Arg(op, "kv_cache", kv_cache).same_device("query", query).ndim(3).dtype(cache_dtypes).last_dim_contiguous();
  if (kv_cache.size(1) < 1) Arg(op, "kv_cache", kv_cache).expected("a block size of at least 1", "0");
  const int64_t key_dim = kv_cache.size(2);
  Arg(op, "query", query).dtype(query_dtypes).shape({T, heads, key_dim}).last_dim_contiguous();
  if (heads.value < 1) fail_expected(op, "query", "at least one head", "0");
  if (key_dim < 8 || key_dim > kMlaMaxDim || key_dim % 8 != 0) {
    fail_expected(op, "query",
                  "a last dimension that is a multiple of 8 from 8 to " + std::to_string(kMlaMaxDim),
                  std::to_string(key_dim));
  }
  if (value_dim < 8 || value_dim > key_dim || value_dim % 8 != 0) {
    fail_expected(op, "value_dim",
                  "a multiple of 8 from 8 to kv_cache's last dimension " + std::to_string(key_dim),
                  std::to_string(value_dim));
  }
  check_batch_lists(op, query, block_tables, cu_seqlens_q, seq_lens);
  Arg(op, "out", out)
      .same_device("query", query)
      .same_dtype("query", query)
      .shape({T, heads, value_dim})
      .last_dim_contiguous()
      .not_self_overlapping();
  if (lse.given) check_lse(op, lse.tensor, query, out, T, heads);
  for (const NamedTensor& written : {NamedTensor{"out", &out}, {"lse", lse.if_given()}}) {
    if (!written.tensor) continue;
    check_disjoint(op, written.name, *written.tensor,
                   {{"query", &query},
                    {"kv_cache", &kv_cache},
                    {"block_tables", &block_tables},
                    {"cu_seqlens_q", &cu_seqlens_q},
                    {"seq_lens", &seq_lens}});
  }
  if (!(std::abs(scale) <= 3e38)) fail_expected(op, "scale", "a finite number", number_string(scale));
}

// The tensors of one call of concat_and_cache_mla.
struct MlaCacheWriteArgs {
  const TensorRef &kv_c, &k_pe, &kv_cache, &slot_mapping;

  int64_t num_slots() const { return kv_cache.size(0) * kv_cache.size(1); }
};

inline void check_mla_cache_write(const char* op, const MlaCacheWriteArgs& args) {
  const auto& [kv_c, k_pe, kv_cache, slot_mapping] = args;
  Sym T{"T"}, R{"R"}, P{"P"};
  const std::initializer_list<DType> floats = {DType::f32, DType::f16, DType::bf16};
  Arg(op, "kv_c", kv_c).dtype(floats).shape({T, R}).last_dim_contiguous();
  Arg(op, "k_pe", k_pe)
      .same_device("kv_c", kv_c)
      .same_dtype("kv_c", kv_c)
      .shape({T, P})
      .last_dim_contiguous();
  const Arg cache(op, "kv_cache", kv_cache);
  cache.same_device("kv_c", kv_c).ndim(3).dtype(floats).last_dim_contiguous().not_self_overlapping();
  if (kv_cache.size(1) < 1) cache.expected("a block size of at least 1", "0");
  if (kv_cache.size(2) != R.value + P.value) {
    cache.expected("a last dimension of R + P = " + std::to_string(R.value) + " + " + std::to_string(P.value),
                   shape_string(kv_cache));
  }
  Arg(op, "slot_mapping", slot_mapping).same_device("kv_c", kv_c).dtype({DType::i64}).shape({T}).contiguous();
  check_disjoint(op, "kv_cache", kv_cache,
                 {{"kv_c", &kv_c}, {"k_pe", &k_pe}, {"slot_mapping", &slot_mapping}});
}

}  // namespace inferx
