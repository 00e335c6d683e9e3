#include "cpu/experts.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/packed_weight.h"

namespace py = pybind11;

namespace inferx {
namespace {

// Stacked packed matrices together with the uint8 tensor that holds them.
struct ExpertsHandle {
  cpu::PackedExperts experts;
  py::object buffer;
  int64_t nbytes() const { return experts.experts * experts.stride; }
};

// From a part's first byte to the next part's.
int64_t aligned_nbytes(const cpu::PackedWeight& part) { return (part.nbytes() + 63) / 64 * 64; }

using Names = std::vector<std::string>;

cpu::PackedExperts describe_experts(const Names& dtypes, int64_t e, int64_t n, int64_t k) {
  constexpr const char* op = "PackedExperts";
  const std::string given =
      "[" + std::to_string(e) + ", " + std::to_string(n) + ", " + std::to_string(k) + "]";
  const int64_t parts = static_cast<int64_t>(dtypes.size());
  if (parts < 1) fail_expected(op, "dtypes", "a type for each part", "none");
  if (n % parts != 0) {
    fail_expected(op, "shape", "[E, N, K] with N a multiple of the " + std::to_string(parts) + " parts",
                  given);
  }
  cpu::PackedExperts experts;
  experts.experts = e;
  bool too_large = false;
  for (const std::string& dtype : dtypes) {
    experts.parts.push_back(describe_weight(op, dtype, n / parts, k));
    too_large |=
        __builtin_add_overflow(experts.stride, aligned_nbytes(experts.parts.back()), &experts.stride);
  }
  int64_t nbytes = 0;
  too_large |= __builtin_mul_overflow(experts.stride, e, &nbytes);
  if (e < 1 || too_large) {
    fail_expected(op, "shape", "[E, N, K] with E at least 1 and of a size that can exist", given);
  }
  return experts;
}

int64_t packed_experts_nbytes(const Names& dtypes, int64_t e, int64_t n, int64_t k) {
  const cpu::PackedExperts experts = describe_experts(dtypes, e, n, k);
  return experts.experts * experts.stride;
}

ExpertsHandle make_experts(const py::object& buffer, const Names& dtypes, int64_t e, int64_t n, int64_t k) {
  ExpertsHandle handle{describe_experts(dtypes, e, n, k), buffer};
  TensorRef memory;
  load_buffer("PackedExperts", buffer, handle.nbytes(), memory);
  const uint8_t* at = memory.ptr<const uint8_t>();
  for (cpu::PackedWeight& part : handle.experts.parts) {
    part.data = at;
    at += aligned_nbytes(part);
  }
  return handle;
}

void check_index(const std::string& where, int64_t index, int64_t count) {
  if (index >= 0 && index < count) return;
  throw py::index_error(where + ": expected 0 <= index < " + std::to_string(count) + ", got " +
                        std::to_string(index));
}

void pack_expert(const ExpertsHandle& handle, int64_t expert, int64_t part, const TensorRef& data) {
  constexpr const char* op = "PackedExperts.pack";
  const cpu::PackedExperts& experts = handle.experts;
  check_index(std::string(op) + ": expert", expert, experts.experts);
  check_index(std::string(op) + ": part", part, static_cast<int64_t>(experts.parts.size()));
  const cpu::PackedWeight weight = experts.matrix(expert, part);
  const int64_t row_bytes = check_source(op, data, weight);
  TensorRef memory;
  load_buffer(op, handle.buffer, handle.nbytes(), memory);
  check_disjoint(op, "buffer", memory, "data", data);
  uint8_t* packed = memory.ptr<uint8_t>() + (weight.data - memory.ptr<const uint8_t>());
  py::gil_scoped_release nogil;
  cpu::pack_weight(data.ptr<const uint8_t>(), row_bytes, weight, packed);
}

void dequantize_expert(const TensorRef& out, const ExpertsHandle& handle, int64_t expert) {
  constexpr const char* op = "PackedExperts.dequantize";
  const cpu::PackedExperts& experts = handle.experts;
  check_index(std::string(op) + ": expert", expert, experts.experts);
  Arg(op, "out", out).dtype({DType::f32}).shape({experts.n(), experts.k()}).contiguous().on_cpu();
  py::gil_scoped_release nogil;
  float* to = out.ptr<float>();
  for (size_t part = 0; part < experts.parts.size(); ++part) {
    const cpu::PackedWeight weight = experts.matrix(expert, static_cast<int64_t>(part));
    cpu::dequantize(weight, to, weight.k);
    to += weight.n * weight.k;
  }
}

std::string describe(const cpu::PackedExperts& experts) {
  return std::to_string(experts.parts.size()) + " part" + (experts.parts.size() == 1 ? "" : "s") + " of [" +
         std::to_string(experts.experts) + ", " + std::to_string(experts.parts[0].n) + ", " +
         std::to_string(experts.k()) + "]";
}

cpu::GatedActivation activation_of(const char* op, const std::string& name, double alpha, double limit) {
  const auto with = [&](cpu::Activation f) {
    return cpu::GatedActivation{f, static_cast<float>(alpha), static_cast<float>(limit)};
  };
  if (name == "silu") return with(cpu::Activation::silu);
  if (name == "gelu") return with(cpu::Activation::gelu);
  if (name == "gelu_pytorch_tanh") return with(cpu::Activation::gelu_tanh);
  if (name == "swigluoai") return with(cpu::Activation::swigluoai);
  fail_expected(op, "activation", "one of silu, gelu, gelu_pytorch_tanh, swigluoai", "'" + name + "'");
}

void check_ids(const char* op, const TensorRef& ids, int64_t experts) {
  const int32_t* id = ids.ptr<const int32_t>();
  const int64_t count = ids.numel(), top_k = ids.size(1);
  for (int64_t i = 0; i < count; ++i) {
    if (id[i] >= -1 && id[i] < experts) continue;
    throw py::index_error(std::string(op) + ": topk_ids: expected -1 <= id < " + std::to_string(experts) +
                          ", got " + std::to_string(id[i]) + " at index [" + std::to_string(i / top_k) +
                          ", " + std::to_string(i % top_k) + "]");
  }
}

void fused_moe_packed(const TensorRef& out, const TensorRef& x, const ExpertsHandle& w13_handle,
                      const ExpertsHandle& w2_handle, const TensorRef& topk_weights,
                      const TensorRef& topk_ids, const std::string& activation, const py::object& w13_bias,
                      const py::object& w2_bias, double swiglu_alpha, double swiglu_limit) {
  constexpr const char* op = "fused_moe";
  const cpu::PackedExperts &w13 = w13_handle.experts, &w2 = w2_handle.experts;
  if (w13.parts.size() != 2) fail_expected(op, "w13", "two parts (gate, up)", describe(w13));
  const int64_t h = w13.k(), i = w13.parts[0].n, e = w13.experts;
  if (w2.parts.size() != 1 || w2.experts != e || w2.k() != i || w2.n() != h) {
    const std::string wanted =
        "[E=" + std::to_string(e) + ", H=" + std::to_string(h) + ", I=" + std::to_string(i) + "] as of w13";
    fail_expected(op, "w2", "1 part of " + wanted, describe(w2));
  }
  Sym tokens{"T"}, hidden{"H", h}, top_k{"k"};
  Arg(op, "x", x).dtype({DType::f32}).shape({tokens, hidden}).last_dim_contiguous().on_cpu();
  Arg(op, "topk_ids", topk_ids).dtype({DType::i32}).shape({tokens, top_k}).contiguous().on_cpu();
  if (top_k.value < 1) Arg(op, "topk_ids", topk_ids).expected("k >= 1 ids a token", shape_string(topk_ids));
  Arg(op, "topk_weights", topk_weights).dtype({DType::f32}).shape({tokens, top_k}).contiguous().on_cpu();
  Arg(op, "out", out).dtype({DType::f32}).shape({tokens, hidden}).last_dim_contiguous().on_cpu();
  Arg(op, "out", out).not_self_overlapping();
  TensorRef bias13, bias2;
  const bool has13 = load_optional(op, "w13_bias", w13_bias, bias13);
  const bool has2 = load_optional(op, "w2_bias", w2_bias, bias2);
  if (has13) Arg(op, "w13_bias", bias13).dtype({DType::f32}).shape({e, 2 * i}).contiguous().on_cpu();
  if (has2) Arg(op, "w2_bias", bias2).dtype({DType::f32}).shape({e, h}).contiguous().on_cpu();
  check_disjoint(op, "out", out,
                 {{"x", &x},
                  {"topk_weights", &topk_weights},
                  {"topk_ids", &topk_ids},
                  {"w13_bias", has13 ? &bias13 : nullptr},
                  {"w2_bias", has2 ? &bias2 : nullptr}});
  check_ids(op, topk_ids, e);
  const cpu::FusedMoeParams params{x.ptr<const float>(),
                                   tokens.value,
                                   x.stride(0),
                                   &w13,
                                   &w2,
                                   has13 ? bias13.ptr<const float>() : nullptr,
                                   has2 ? bias2.ptr<const float>() : nullptr,
                                   topk_weights.ptr<const float>(),
                                   topk_ids.ptr<const int32_t>(),
                                   top_k.value,
                                   activation_of(op, activation, swiglu_alpha, swiglu_limit),
                                   out.ptr<float>(),
                                   out.stride(0)};
  py::gil_scoped_release nogil;
  cpu::fused_moe(params);
}

void batched_linear(const TensorRef& out, const TensorRef& x, const ExpertsHandle& handle) {
  constexpr const char* op = "batched_linear";
  const cpu::PackedExperts& weight = handle.experts;
  if (weight.parts.size() != 1) fail_expected(op, "weight", "one part", describe(weight));
  Sym tokens{"T"}, batch{"B", weight.experts}, n{"N", weight.n()}, k{"K", weight.k()};
  Arg(op, "x", x).dtype({DType::f32}).shape({tokens, batch, k}).last_dim_contiguous().on_cpu();
  Arg(op, "out", out).dtype({DType::f32}).shape({tokens, batch, n}).last_dim_contiguous().on_cpu();
  Arg(op, "out", out).not_self_overlapping();
  check_disjoint(op, "out", out, "x", x);
  const cpu::BatchedLinearParams params{x.ptr<const float>(),       tokens.value,
                                        {x.stride(0), x.stride(1)}, &weight,
                                        out.ptr<float>(),           {out.stride(0), out.stride(1)}};
  py::gil_scoped_release nogil;
  cpu::batched_linear(params);
}

// For the ways over several kernels, or over torch's, neither of which sees all of an op's arguments.
void check_apart(const std::string& op, const std::string& name, const TensorRef& written,
                 const py::dict& others) {
  for (const auto& [key, value] : others) {
    const std::string other_name = py::cast<std::string>(key);
    TensorRef other;
    if (load_optional(op.c_str(), other_name.c_str(), py::reinterpret_borrow<py::object>(value), other))
      check_disjoint(op.c_str(), name.c_str(), written, other_name.c_str(), other);
  }
}

}  // namespace

void bind_experts(py::module_& m) {
  py::class_<ExpertsHandle>(m, "ExpertsHandle");
  m.def("check_apart", &check_apart, py::arg("op"), py::arg("name"), py::arg("written"), py::arg("others"));
  m.def("packed_experts_nbytes", &packed_experts_nbytes, py::arg("dtypes"), py::arg("e"), py::arg("n"),
        py::arg("k"));
  m.def("make_experts", &make_experts, py::arg("buffer"), py::arg("dtypes"), py::arg("e"), py::arg("n"),
        py::arg("k"));
  m.def("pack_expert", &pack_expert, py::arg("experts"), py::arg("expert"), py::arg("part"), py::arg("data"));
  m.def("dequantize_expert", &dequantize_expert, py::arg("out"), py::arg("experts"), py::arg("expert"));
  m.def("fused_moe_packed", &fused_moe_packed, py::arg("out"), py::arg("x"), py::arg("w13"), py::arg("w2"),
        py::arg("topk_weights"), py::arg("topk_ids"), py::arg("activation"), py::arg("w13_bias"),
        py::arg("w2_bias"), py::arg("swiglu_alpha"), py::arg("swiglu_limit"));
  m.def("batched_linear", &batched_linear, py::arg("out"), py::arg("x"), py::arg("weight"));
}

}  // namespace inferx
