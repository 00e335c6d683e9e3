// The checks of rotary_embedding that are the same on every device; Tensor is cpu::RotaryTensor or
// cuda::RotaryTensor (data, stride of tokens, stride of heads, number of heads).
#pragma once
#include "bindings/check.h"

namespace inferx {

// Query or key, [T, heads * head_size] or [T, heads, head_size].
template <class Tensor>
Tensor rotary_tensor(const char* op, const char* name, const TensorRef& t, Sym& tokens, int64_t head_size) {
  Arg arg(op, name, t);
  arg.dtype({DType::f32, DType::f16, DType::bf16}).last_dim_contiguous().not_self_overlapping();
  Sym heads{"heads"}, width{"heads * head_size"};
  if (t.ndim == 3) {
    arg.shape({tokens, heads, head_size});
    return {t.data, t.stride(0), t.stride(1), heads.value};
  }
  arg.shape({tokens, width});
  if (width.value % head_size != 0) {
    arg.expected("a last dimension that is a multiple of head_size=" + std::to_string(head_size),
                 shape_string(t));
  }
  return {t.data, t.stride(0), head_size, width.value / head_size};
}

// Fills tensors, positions and table of a cpu::RotaryParams or cuda::RotaryParams; returns the table's rows.
template <class Params>
int64_t fill_rotary(const char* op, Params& params, const TensorRef& positions, const TensorRef& query,
                    const TensorRef* key, int64_t head_size, const TensorRef& cos_sin_cache, bool is_neox) {
  using Tensor = std::remove_reference_t<decltype(params.tensors[0])>;
  if (head_size < 1) fail_expected(op, "head_size", "a positive number", std::to_string(head_size));
  Sym tokens{"T"}, cached{"P"}, rot_dim{"rot_dim"};
  Arg(op, "positions", positions).dtype({DType::i64}).shape({tokens});
  params.tensors[params.num_tensors++] = rotary_tensor<Tensor>(op, "query", query, tokens, head_size);
  if (key) {
    params.tensors[params.num_tensors++] = rotary_tensor<Tensor>(op, "key", *key, tokens, head_size);
    Arg(op, "key", *key).same_dtype("query", query);
    check_disjoint(op, "key", *key, "query", query);
  }
  Arg cache(op, "cos_sin_cache", cos_sin_cache);
  cache.dtype({DType::f32}).shape({cached, rot_dim}).last_dim_contiguous();
  if (rot_dim.value % 2 != 0 || rot_dim.value > head_size) {
    cache.expected("an even rot_dim of at most head_size=" + std::to_string(head_size),
                   shape_string(cos_sin_cache));
  }
  check_disjoint(op, "query", query, {{"positions", &positions}, {"cos_sin_cache", &cos_sin_cache}});
  if (key) check_disjoint(op, "key", *key, {{"positions", &positions}, {"cos_sin_cache", &cos_sin_cache}});
  params.dtype = query.dtype;
  params.positions = positions.ptr<int64_t>();
  params.positions_stride = positions.stride(0);
  params.num_tokens = tokens.value;
  params.cos_sin_cache = cos_sin_cache.ptr<float>();
  params.cache_stride = cos_sin_cache.stride(0);
  params.rot_dim = rot_dim.value;
  params.is_neox = is_neox;
  return cached.value;
}

// For positions that lie on the CPU.
inline void check_positions(const char* op, const TensorRef& positions, int64_t limit) {
  const int64_t stride = positions.stride(0);
  for (int64_t i = 0; i < positions.size(0); ++i) {
    const int64_t position = positions.ptr<int64_t>()[i * stride];
    if (position >= 0 && position < limit) continue;
    throw pybind11::index_error(std::string(op) + ": positions[" + std::to_string(i) +
                                "]: expected 0 <= position < " + std::to_string(limit) +
                                " (rows of cos_sin_cache), got " + std::to_string(position));
  }
}

}  // namespace inferx
