#include "cpu/rotary.h"

#include "bindings/bindings.h"
#include "bindings/check.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* kOp = "rotary_embedding";

// Checks query or key, [T, heads * head_size] or [T, heads, head_size].
cpu::RotaryTensor rotary_tensor(const char* name, const TensorRef& t, Sym& tokens, int64_t head_size) {
  Arg arg(kOp, name, t);
  arg.dtype({DType::f32, DType::f16, DType::bf16}).on_cpu().last_dim_contiguous().not_self_overlapping();
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

void check_positions(const TensorRef& positions, int64_t limit) {
  const int64_t stride = positions.stride(0);
  for (int64_t i = 0; i < positions.size(0); ++i) {
    const int64_t position = positions.ptr<int64_t>()[i * stride];
    if (position >= 0 && position < limit) continue;
    throw py::index_error(std::string(kOp) + ": positions[" + std::to_string(i) +
                          "]: expected 0 <= position < " + std::to_string(limit) +
                          " (rows of cos_sin_cache), got " + std::to_string(position));
  }
}

void rotary_embedding(const TensorRef& positions, const TensorRef& query, const TensorRef* key,
                      int64_t head_size, const TensorRef& cos_sin_cache, bool is_neox) {
  if (head_size < 1) fail_expected(kOp, "head_size", "a positive number", std::to_string(head_size));
  Sym tokens{"T"}, cached{"P"}, rot_dim{"rot_dim"};
  Arg(kOp, "positions", positions).dtype({DType::i64}).shape({tokens}).on_cpu();

  cpu::RotaryParams params{};
  params.tensors[params.num_tensors++] = rotary_tensor("query", query, tokens, head_size);
  if (key) {
    params.tensors[params.num_tensors++] = rotary_tensor("key", *key, tokens, head_size);
    Arg(kOp, "key", *key).same_dtype("query", query);
    check_disjoint(kOp, "key", *key, "query", query);
  }
  Arg cache(kOp, "cos_sin_cache", cos_sin_cache);
  cache.dtype({DType::f32}).shape({cached, rot_dim}).last_dim_contiguous().on_cpu();
  if (rot_dim.value % 2 != 0 || rot_dim.value > head_size) {
    cache.expected("an even rot_dim of at most head_size=" + std::to_string(head_size),
                   shape_string(cos_sin_cache));
  }
  check_positions(positions, cached.value);

  params.dtype = query.dtype;
  params.positions = positions.ptr<int64_t>();
  params.positions_stride = positions.stride(0);
  params.num_tokens = tokens.value;
  params.cos_sin_cache = cos_sin_cache.ptr<float>();
  params.cache_stride = cos_sin_cache.stride(0);
  params.rot_dim = rot_dim.value;
  params.is_neox = is_neox;
  py::gil_scoped_release nogil;
  cpu::rotary_embedding(params);
}

}  // namespace

void bind_rotary(py::module_& m) {
  m.def(
      "rotary_embedding",
      [](const TensorRef& positions, const TensorRef& query, py::handle key, int64_t head_size,
         const TensorRef& cos_sin_cache, bool is_neox) {
        if (key.is_none()) {
          return rotary_embedding(positions, query, nullptr, head_size, cos_sin_cache, is_neox);
        }
        TensorRef key_tensor;
        if (!load_tensor(key.ptr(), key_tensor)) {
          throw py::type_error(std::string(kOp) + ": key: expected a torch.Tensor or None, got " +
                               py::str(py::type::of(key)).cast<std::string>());
        }
        rotary_embedding(positions, query, &key_tensor, head_size, cos_sin_cache, is_neox);
      },
      py::arg("positions"), py::arg("query"), py::arg("key"), py::arg("head_size"), py::arg("cos_sin_cache"),
      py::arg("is_neox") = true);
}

}  // namespace inferx
