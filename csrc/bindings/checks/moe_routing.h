// The routing ops' checks and definitions, the same on every device.
#pragma once
#include <cmath>
#include <string>

#include "bindings/check.h"
#include "moe_routing_params.h"

namespace inferx {

// The tensors of one call.
struct RoutingTensors {
  const TensorRef& weights;
  const TensorRef& ids;
  const TensorRef& logits;
  TensorRef bias;
  bool has_bias = false;
};

struct RoutingOptions {
  int64_t groups = 1, top_groups = 1;
  moe::Scoring scoring = moe::Scoring::softmax;
  bool renormalize = false;
  double scale = 1.0;
};

inline moe::Scoring parse_scoring(const char* op, const std::string& name) {
  if (name == "softmax") return moe::Scoring::softmax;
  if (name == "sigmoid") return moe::Scoring::sigmoid;
  fail_expected(op, "scoring_func", "softmax or sigmoid", name);
}

inline void check_in_range(const char* op, const char* name, int64_t value, int64_t last,
                           const std::string& what) {
  if (value < 1 || value > last) {
    fail_expected(op, name, "1 to " + std::to_string(last) + what, std::to_string(value));
  }
}

inline void check_groups(const char* op, const RoutingOptions& options, int64_t experts, int64_t top_k) {
  const int64_t groups = options.groups;
  if (groups < 1 || groups > moe::kMaxGroups || experts % groups != 0) {
    fail_expected(op, "num_expert_group",
                  "1 to " + std::to_string(moe::kMaxGroups) + " groups that divide the " +
                      std::to_string(experts) + " experts",
                  std::to_string(groups));
  }
  check_in_range(op, "topk_group", options.top_groups, groups, ", num_expert_group");
  const int64_t left = experts / groups * options.top_groups;
  check_in_range(op, "top_k", top_k, left,
                 ", the experts of topk_group=" + std::to_string(options.top_groups) + " groups");
}

inline moe::RoutingParams check_routing(const char* op, const RoutingTensors& t,
                                        const RoutingOptions& options) {
  Sym tokens{"T"}, experts{"E"}, top_k{"k"};
  const Arg logits(op, "gating_output", t.logits);
  logits.dtype({DType::f32, DType::f16, DType::bf16}).shape({tokens, experts}).last_dim_contiguous();
  if (experts.value < 1 || experts.value > moe::kMaxExperts) {
    logits.expected("1 to " + std::to_string(moe::kMaxExperts) + " experts", shape_string(t.logits));
  }
  const Arg weights(op, "topk_weights", t.weights), ids(op, "topk_ids", t.ids);
  weights.dtype({DType::f32}).shape({tokens, top_k}).contiguous().same_device("gating_output", t.logits);
  ids.dtype({DType::i32}).shape({tokens, top_k}).contiguous().same_device("gating_output", t.logits);
  if (top_k.value > experts.value) {
    check_in_range(op, "top_k", top_k.value, experts.value, ", the number of experts");
  }
  check_in_range(op, "top_k", top_k.value, moe::kMaxTopK, "");
  check_groups(op, options, experts.value, top_k.value);
  if (t.has_bias) {
    Arg(op, "e_score_correction_bias", t.bias).dtype({DType::f32}).shape({experts}).contiguous();
    Arg(op, "e_score_correction_bias", t.bias).same_device("gating_output", t.logits);
  }
  if (!std::isfinite(static_cast<float>(options.scale))) {
    fail_expected(op, "routed_scaling_factor", "a finite number", std::to_string(options.scale));
  }
  const NamedTensor logits_named{"gating_output", &t.logits};
  const NamedTensor bias_named{"e_score_correction_bias", t.has_bias ? &t.bias : nullptr};
  check_disjoint(op, "topk_weights", t.weights, {logits_named, bias_named});
  check_disjoint(op, "topk_ids", t.ids, {logits_named, bias_named});
  check_all_disjoint(op, {{"topk_weights", &t.weights}, {"topk_ids", &t.ids}});

  return {t.weights.ptr<float>(),
          t.ids.ptr<int32_t>(),
          t.logits.data,
          t.has_bias ? t.bias.ptr<const float>() : nullptr,
          tokens.value,
          t.logits.stride(0),
          static_cast<int32_t>(experts.value),
          static_cast<int32_t>(top_k.value),
          static_cast<int32_t>(options.groups),
          static_cast<int32_t>(options.top_groups),
          t.logits.dtype,
          options.scoring,
          options.renormalize,
          static_cast<float>(options.scale)};
}

// Defines the ops in a module.  run(op, tensors, options) checks, and computes on its device.
template <class Run>
void define_routing_ops(pybind11::module_& m, const Run& run) {
  namespace py = pybind11;
  const auto call = [run](const char* op, const TensorRef& weights, const TensorRef& ids,
                          const TensorRef& logits, const py::object& bias, const RoutingOptions& options) {
    RoutingTensors tensors{weights, ids, logits, {}, false};
    tensors.has_bias = load_optional(op, "e_score_correction_bias", bias, tensors.bias);
    run(op, tensors, options);
  };
  const auto define = [&](const char* op, moe::Scoring scoring) {
    m.def(
        op,
        [=](const TensorRef& weights, const TensorRef& ids, const TensorRef& logits, bool renormalize,
            const py::object& bias,
            double scale) { call(op, weights, ids, logits, bias, {1, 1, scoring, renormalize, scale}); },
        py::arg("topk_weights"), py::arg("topk_ids"), py::arg("gating_output"), py::arg("renormalize"),
        py::arg("e_score_correction_bias"), py::arg("routed_scaling_factor"));
  };
  define("topk_softmax", moe::Scoring::softmax);
  define("topk_sigmoid", moe::Scoring::sigmoid);
  m.def(
      "grouped_topk",
      [=](const TensorRef& weights, const TensorRef& ids, const TensorRef& logits, int64_t num_expert_group,
          int64_t topk_group, bool renormalize, const std::string& scoring_func, const py::object& bias,
          double scale) {
        constexpr const char* op = "grouped_topk";
        call(op, weights, ids, logits, bias,
             {num_expert_group, topk_group, parse_scoring(op, scoring_func), renormalize, scale});
      },
      py::arg("topk_weights"), py::arg("topk_ids"), py::arg("gating_output"), py::arg("num_expert_group"),
      py::arg("topk_group"), py::arg("renormalize"), py::arg("scoring_func"),
      py::arg("e_score_correction_bias"), py::arg("routed_scaling_factor"));
}

}  // namespace inferx
