#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/check.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "kernels/moe_gemm/params.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* op = "moe_gemm";

struct Optional {
  TensorRef tensor;
  bool given;
  Optional(const char* name, const py::object& object) : given(load_optional(op, name, object, tensor)) {}
};

struct Tensors {
  const TensorRef &out, &input, &weight, &topk_ids;
  Optional bias, topk_weights, sorted_token_ids, expert_ids, num_tokens_post_padded;
};

cuda::MoeActivation parse_activation(const std::optional<std::string>& name) {
  using cuda::MoeActivation;
  if (!name) return MoeActivation::none;
  if (*name == "silu") return MoeActivation::silu;
  if (*name == "gelu") return MoeActivation::gelu;
  if (*name == "gelu_pytorch_tanh") return MoeActivation::gelu_tanh;
  if (*name == "swigluoai") return MoeActivation::swigluoai;
  fail_expected(op, "activation", "silu, gelu, gelu_pytorch_tanh, swigluoai or None", *name);
}

// Rows of 16-byte chunks, each of which begins at a multiple of 16 bytes.
void check_chunks(const char* name, const TensorRef& t) {
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.size(-1) % 8 == 0;
  for (int i = 0; i + 1 < t.ndim; ++i) aligned = aligned && (t.size(i) <= 1 || t.stride(i) % 8 == 0);
  if (aligned || t.numel() == 0) return;
  Arg(op, name, t)
      .expected(
          "16-bit rows of a multiple of 8 elements that begin at multiples of 16 bytes (address and strides)",
          "shape " + shape_string(t) + " at an address of " +
              std::to_string(reinterpret_cast<uintptr_t>(t.data) % 16) + " modulo 16");
}

// The result of moe_align_block_size; returns whether it is there.
bool check_tiles(const Tensors& t, int64_t pairs, int64_t block_size) {
  if (!t.sorted_token_ids.given) {
    if (t.expert_ids.given) fail_expected(op, "expert_ids", "None without sorted_token_ids", "a tensor");
    if (t.num_tokens_post_padded.given)
      fail_expected(op, "num_tokens_post_padded", "None without sorted_token_ids", "a tensor");
    return false;
  }
  if (!t.expert_ids.given) fail_expected(op, "expert_ids", "a tensor with sorted_token_ids", "None");
  if (!t.num_tokens_post_padded.given)
    fail_expected(op, "num_tokens_post_padded", "a tensor with sorted_token_ids", "None");
  const bool exact = t.input.dtype == DType::f32;
  const bool known = exact ? block_size == cuda::kExactTokens
                           : block_size == 8 || block_size == 16 || block_size == 32 || block_size == 64 ||
                                 block_size == 128;
  if (!known)
    fail_expected(
        op, "block_size",
        exact ? "16 for float32" : "8, 16, 32, 64 or 128 for " + std::string(dtype_name(t.input.dtype)),
        std::to_string(block_size));
  Sym blocks{"blocks"}, places{"places"};
  Arg(op, "expert_ids", t.expert_ids.tensor).dtype({DType::i32}).shape({blocks}).contiguous();
  Arg(op, "sorted_token_ids", t.sorted_token_ids.tensor).dtype({DType::i32}).shape({places}).contiguous();
  // Each pair has to be in reach of some tile's number, also where it has no expert.
  if (blocks.value * block_size < pairs) {
    Arg(op, "expert_ids", t.expert_ids.tensor)
        .expected("tiles that could hold all " + std::to_string(pairs) + " pairs",
                  std::to_string(blocks.value) + " tiles of " + std::to_string(block_size));
  }
  Arg(op, "num_tokens_post_padded", t.num_tokens_post_padded.tensor)
      .dtype({DType::i32})
      .shape({1})
      .contiguous();
  return true;
}

cuda::MoeGemmParams check(const Tensors& t, cuda::MoeActivation activation, int64_t block_size, double alpha,
                          double limit) {
  const bool gated = activation != cuda::MoeActivation::none;
  Sym T{"T"}, rows{"rows"}, k{"K"}, top_k{"top_k"}, experts{"E"}, n{"N"}, pairs{"T * top_k"}, columns{"N"};
  Arg(op, "topk_ids", t.topk_ids).dtype({DType::i32}).shape({T, top_k}).contiguous();
  const Arg input(op, "input", t.input);
  input.dtype({DType::f32, DType::f16, DType::bf16}).shape({rows, k}).last_dim_contiguous();
  pairs.value = T.value * top_k.value;
  if (rows.value != T.value && rows.value != pairs.value)
    input.expected("a row for each of " + std::to_string(T.value) + " tokens or of " +
                       std::to_string(pairs.value) + " pairs",
                   shape_string(t.input));
  const Arg weight(op, "weight", t.weight);
  weight.same_dtype("input", t.input).shape({experts, n, k}).last_dim_contiguous();
  if (gated && n.value % 2 != 0) weight.expected("an even N (gates and ups)", shape_string(t.weight));
  columns.value = gated ? n.value / 2 : n.value;
  Arg(op, "out", t.out)
      .same_dtype("input", t.input)
      .shape({pairs, columns})
      .last_dim_contiguous()
      .not_self_overlapping();
  if (t.input.dtype != DType::f32) {
    check_chunks("input", t.input);
    check_chunks("weight", t.weight);
    check_chunks("out", t.out);
  }
  for (const auto& [name, value] : {std::pair{"the number of pairs", pairs.value}, std::pair{"N", n.value},
                                    std::pair{"K", k.value}, std::pair{"E", experts.value}}) {
    if (value > INT32_MAX / 2) weight.expected(std::string(name) + " below 2^30", std::to_string(value));
  }
  if (t.bias.given) {
    const Arg bias(op, "bias", t.bias.tensor);
    if (t.bias.tensor.dtype != DType::f32) bias.same_dtype("input", t.input);
    bias.shape({experts, n}).last_dim_contiguous();
  }
  if (t.topk_weights.given)
    Arg(op, "topk_weights", t.topk_weights.tensor).dtype({DType::f32}).shape({T, top_k}).contiguous();
  const bool tiles = check_tiles(t, pairs.value, block_size);
  const auto given = [](const Optional& o) { return o.given ? &o.tensor : nullptr; };
  check_disjoint(op, "out", t.out,
                 {{"input", &t.input},
                  {"weight", &t.weight},
                  {"bias", given(t.bias)},
                  {"topk_ids", &t.topk_ids},
                  {"topk_weights", given(t.topk_weights)},
                  {"sorted_token_ids", given(t.sorted_token_ids)},
                  {"expert_ids", given(t.expert_ids)},
                  {"num_tokens_post_padded", given(t.num_tokens_post_padded)}});

  cuda::MoeGemmParams p{};
  p.dtype = t.input.dtype;
  p.input = t.input.data;
  p.input_stride = t.input.stride(0);
  p.pairs_per_row = rows.value == pairs.value ? 1 : top_k.value;
  p.weight = t.weight.data;
  p.weight_stride_expert = t.weight.stride(0);
  p.weight_stride_row = t.weight.stride(1);
  if (t.bias.given) {
    p.bias = t.bias.tensor.data;
    p.bias_stride_expert = t.bias.tensor.stride(0);
    p.bias_f32 = t.bias.tensor.dtype == DType::f32;
  }
  p.out = t.out.data;
  p.out_stride = t.out.stride(0);
  p.topk_ids = t.topk_ids.ptr<int32_t>();
  if (t.topk_weights.given) p.topk_weights = t.topk_weights.tensor.ptr<float>();
  p.num_pairs = pairs.value;
  p.num_experts = experts.value;
  p.columns = columns.value;
  p.k = k.value;
  p.activation = activation;
  p.swiglu_alpha = static_cast<float>(alpha);
  p.swiglu_limit = static_cast<float>(limit);
  if (tiles) {
    p.sorted_token_ids = t.sorted_token_ids.tensor.ptr<int32_t>();
    p.expert_ids = t.expert_ids.tensor.ptr<int32_t>();
    p.num_tokens_post_padded = t.num_tokens_post_padded.tensor.ptr<int32_t>();
    p.num_places = t.sorted_token_ids.tensor.size(0);
    p.num_blocks = t.expert_ids.tensor.size(0);
    p.block_size = block_size;
  }
  return p;
}

void moe_gemm(const TensorRef& out, const TensorRef& input, const TensorRef& weight, const py::object& bias,
              const TensorRef& topk_ids, const py::object& topk_weights, const py::object& sorted_token_ids,
              const py::object& expert_ids, const py::object& num_tokens_post_padded, int64_t block_size,
              const std::optional<std::string>& activation, double swiglu_alpha, double swiglu_limit) {
  DeviceCall call(op, "input", input);
  const Tensors t{out,
                  input,
                  weight,
                  topk_ids,
                  {"bias", bias},
                  {"topk_weights", topk_weights},
                  {"sorted_token_ids", sorted_token_ids},
                  {"expert_ids", expert_ids},
                  {"num_tokens_post_padded", num_tokens_post_padded}};
  const cuda::MoeGemmParams params =
      check(t, parse_activation(activation), block_size, swiglu_alpha, swiglu_limit);
  call.reads("input", input).reads("weight", weight).reads("topk_ids", topk_ids).writes("out", out);
  const auto optional = [&call](const char* name, const Optional& o) {
    if (o.given) call.reads(name, o.tensor);
  };
  optional("bias", t.bias);
  optional("topk_weights", t.topk_weights);
  optional("sorted_token_ids", t.sorted_token_ids);
  optional("expert_ids", t.expert_ids);
  optional("num_tokens_post_padded", t.num_tokens_post_padded);
  call.run([&](void* stream) { return cuda::launch_moe_gemm(params, stream); });
}

}  // namespace

void bind_cuda_moe_gemm(py::module_& m) {
  m.def("moe_gemm", &moe_gemm, py::arg("out"), py::arg("input"), py::arg("weight"), py::arg("bias"),
        py::arg("topk_ids"), py::arg("topk_weights"), py::arg("sorted_token_ids"), py::arg("expert_ids"),
        py::arg("num_tokens_post_padded"), py::arg("block_size"), py::arg("activation") = py::none(),
        py::arg("swiglu_alpha") = 1.702, py::arg("swiglu_limit") = 7.0);
}

}  // namespace inferx
