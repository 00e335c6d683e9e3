// The checks of paged_attention that are the same on every device: all but values that only the CPU can look
// at.
#pragma once
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string>

#include "bindings/check.h"

namespace inferx {

// An argument that is a tensor or None.
struct OptionalTensor {
  OptionalTensor(const char* op, const char* name, const pybind11::object& object)
      : given(load_optional(op, name, object, tensor)) {}
  template <class T>
  T* ptr() const {
    return given ? tensor.ptr<T>() : nullptr;
  }
  const TensorRef* if_given() const { return given ? &tensor : nullptr; }
  TensorRef tensor;
  bool given;
};

struct PagedAttentionArgs {
  const TensorRef &out, &query, &key_cache, &value_cache, &block_tables, &cu_seqlens_q, &seq_lens;
  const OptionalTensor &lse, &sinks, &k_scale, &v_scale;
  double scale, softcap;
  int64_t window;

  int64_t num_tokens() const { return query.size(0); }
  int64_t num_heads() const { return query.size(1); }
  int64_t head_dim() const { return query.size(2); }
  int64_t num_kv_heads() const { return key_cache.size(2); }
  int64_t batch() const { return seq_lens.size(0); }
};

inline void check_cache_scale(const char* op, const char* name, const OptionalTensor& scale,
                              const PagedAttentionArgs& args) {
  if (!scale.given) return;
  const Arg arg(op, name, scale.tensor);
  if (args.key_cache.dtype != DType::f8e4m3)
    arg.expected("None for a cache of " + std::string(dtype_name(args.key_cache.dtype)), "a tensor");
  arg.dtype({DType::f32}).contiguous().same_device("query", args.query);
  const int64_t heads = args.num_kv_heads();
  if (scale.tensor.numel() == 1 || (scale.tensor.ndim == 1 && scale.tensor.size(0) == heads)) return;
  arg.expected("one element or shape [num_kv_heads=" + std::to_string(heads) + "]",
               shape_string(scale.tensor));
}

inline std::string number_string(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", x);
  return text;
}

// Where the queries and keys of each request lie.
inline void check_batch_lists(const char* op, const TensorRef& query, const TensorRef& block_tables,
                              const TensorRef& cu_seqlens_q, const TensorRef& seq_lens) {
  Sym batch{"batch"}, max_blocks{"max_blocks"};
  Arg(op, "seq_lens", seq_lens).same_device("query", query).dtype({DType::i32}).shape({batch}).contiguous();
  Arg(op, "cu_seqlens_q", cu_seqlens_q)
      .same_device("query", query)
      .dtype({DType::i32})
      .shape({batch.value + 1})
      .contiguous();
  Arg(op, "block_tables", block_tables)
      .same_device("query", query)
      .dtype({DType::i32})
      .shape({batch, max_blocks})
      .last_dim_contiguous();
}

// heads: of the query.
inline void check_lse(const char* op, const TensorRef& lse, const TensorRef& query, const TensorRef& out,
                      Sym& tokens, Sym& heads) {
  Arg(op, "lse", lse)
      .same_device("query", query)
      .dtype({DType::f32})
      .shape({tokens, heads})
      .not_self_overlapping();
  check_disjoint(op, "lse", lse, "out", out);
}

// What is written shares nothing with the small inputs.
inline void check_apart_from_lists(const char* op, const char* name, const TensorRef& written,
                                   const PagedAttentionArgs& args) {
  check_disjoint(op, name, written,
                 {{"block_tables", &args.block_tables},
                  {"cu_seqlens_q", &args.cu_seqlens_q},
                  {"seq_lens", &args.seq_lens},
                  {"sinks", args.sinks.if_given()},
                  {"k_scale", args.k_scale.if_given()},
                  {"v_scale", args.v_scale.if_given()}});
}

// In float32, which the kernels use, a smaller cap would be 0.
inline void check_attention_numbers(const char* op, double scale, double softcap, int64_t window) {
  if (!(std::abs(scale) <= 3e38)) fail_expected(op, "scale", "a finite number", std::to_string(scale));
  if (softcap != 0 && !(softcap >= 1e-37 && softcap <= 3e38))
    fail_expected(op, "softcap", "a number from 1e-37 to 3e38, or 0 for none", number_string(softcap));
  if (window < 0) fail_expected(op, "window", "a positive number, or 0 for none", std::to_string(window));
}

inline void check_attention_heads(const char* op, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  constexpr int64_t kMaxHeadDim = 256;
  if (head_dim < 8 || head_dim > kMaxHeadDim || head_dim % 8 != 0) {
    fail_expected(op, "query", "a head_dim that is a multiple of 8 from 8 to 256", std::to_string(head_dim));
  }
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0) {
    fail_expected(op, "query",
                  "a number of heads that is a multiple of key_cache's " + std::to_string(kv_heads),
                  std::to_string(heads));
  }
}

inline void check_paged_attention(const char* op, const PagedAttentionArgs& args,
                                  std::initializer_list<DType> query_dtypes,
                                  std::initializer_list<DType> cache_dtypes) {
  const auto& [out, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens, lse, sinks, k_scale,
               v_scale, scale, softcap, window] = args;
  Sym T{"T"}, Hq{"Hq"};
  Arg(op, "key_cache", key_cache)
      .same_device("query", query)
      .ndim(4)
      .dtype(cache_dtypes)
      .last_dim_contiguous();
  Arg(op, "value_cache", value_cache)
      .same_device("query", query)
      .same_shape("key_cache", key_cache)
      .same_dtype("key_cache", key_cache)
      .last_dim_contiguous();
  if (key_cache.size(1) < 1) Arg(op, "key_cache", key_cache).expected("a block size of at least 1", "0");
  const int64_t kv_heads = key_cache.size(2), head_dim = key_cache.size(3);
  Arg(op, "query", query).dtype(query_dtypes).shape({T, Hq, head_dim}).last_dim_contiguous();
  check_attention_heads(op, Hq.value, kv_heads, head_dim);
  check_batch_lists(op, query, block_tables, cu_seqlens_q, seq_lens);
  Arg(op, "out", out)
      .same_device("query", query)
      .same_dtype("query", query)
      .same_shape("query", query)
      .last_dim_contiguous()
      .not_self_overlapping();
  check_same_or_disjoint(op, "out", out, "query", query);
  check_disjoint(op, "out", out, "key_cache", key_cache);
  check_disjoint(op, "out", out, "value_cache", value_cache);
  if (lse.given) {
    check_lse(op, lse.tensor, query, out, T, Hq);
    check_disjoint(op, "lse", lse.tensor, "query", query);
    check_disjoint(op, "lse", lse.tensor, "key_cache", key_cache);
    check_disjoint(op, "lse", lse.tensor, "value_cache", value_cache);
  }
  if (sinks.given)
    Arg(op, "sinks", sinks.tensor).same_device("query", query).dtype({DType::f32}).shape({Hq}).contiguous();
  check_cache_scale(op, "k_scale", k_scale, args);
  check_cache_scale(op, "v_scale", v_scale, args);
  for (const NamedTensor& written : {NamedTensor{"out", &out}, {"lse", lse.if_given()}}) {
    if (written.tensor) check_apart_from_lists(op, written.name, *written.tensor, args);
  }
  check_attention_numbers(op, scale, softcap, window);
}

}  // namespace inferx
