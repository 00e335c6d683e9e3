// The checks of the sampling ops, the same on every device.
#pragma once
#include "bindings/check.h"
#include "sampling_math.h"
#include "sampling_params.h"

namespace inferx {

// The tensors of one call, so that a binding can say of all of them where they have to lie.
class SamplingArgs {
 public:
  struct Item {
    const char* name;
    TensorRef tensor;
    bool written;
  };

  explicit SamplingArgs(const char* op) : op_(op) {}

  const TensorRef& required(const char* name, const pybind11::object& object, bool written = false) {
    const TensorRef* tensor = optional(name, object, written);
    if (!tensor) fail_expected(op_, name, "a torch.Tensor", "None");
    return *tensor;
  }

  const TensorRef* optional(const char* name, const pybind11::object& object, bool written = false) {
    Item& item = items_[count_];
    if (!load_optional(op_, name, object, item.tensor)) return nullptr;
    item.name = name;
    item.written = written;
    ++count_;
    return &item.tensor;
  }

  // A contiguous vector of n values, or null for None.
  const TensorRef* vector(const char* name, const pybind11::object& object, DType dtype, Sym& n) {
    const TensorRef* tensor = optional(name, object);
    if (tensor) Arg(op_, name, *tensor).dtype({dtype}).shape({n}).contiguous();
    return tensor;
  }

  template <class T>
  const T* values(const char* name, const pybind11::object& object, DType dtype, Sym& n) {
    const TensorRef* tensor = vector(name, object, dtype, n);
    return tensor ? tensor->ptr<T>() : nullptr;
  }

  template <class T>
  const T* required_values(const char* name, const pybind11::object& object, DType dtype, Sym& n) {
    const TensorRef& tensor = required(name, object);
    Arg(op_, name, tensor).dtype({dtype}).shape({n}).contiguous();
    return tensor.ptr<T>();
  }

  // Called last: nothing that is written may lie over another tensor.
  void check_overlaps() const {
    for (const Item& out : *this) {
      if (!out.written) continue;
      Arg(op_, out.name, out.tensor).not_self_overlapping();
      for (const Item& other : *this) {
        if (&other != &out) check_disjoint(op_, out.name, out.tensor, other.name, other.tensor);
      }
    }
  }

  const Item* begin() const { return items_; }
  const Item* end() const { return items_ + count_; }
  const char* op() const { return op_; }

 private:
  const char* op_;
  Item items_[20];
  int count_ = 0;
};

inline sampling::Logits logits_of(const char* op, const TensorRef& t, Sym& rows, Sym& vocab) {
  Arg arg(op, "logits", t);
  arg.shape({rows, vocab}).last_dim_contiguous();
  if (vocab.value < 1 || vocab.value > sampling::kMaxVocab) {
    arg.expected("1 to " + std::to_string(sampling::kMaxVocab) + " columns", shape_string(t));
  }
  return {t.data, t.dtype, rows.value, vocab.value, t.stride(0)};
}

inline void check_num_ids(const char* op, int64_t num_ids, int64_t vocab) {
  if (num_ids >= 1 && num_ids <= vocab) return;
  fail_expected(op, "num_ids", "1 to " + std::to_string(vocab), std::to_string(num_ids));
}

inline sampling::SampleParams fill_sample_tokens(
    SamplingArgs& args, const pybind11::object& token_ids, const pybind11::object& status,
    const pybind11::object& logits, const pybind11::object& temperature, const pybind11::object& top_k,
    const pybind11::object& top_p, const pybind11::object& min_p, const pybind11::object& seed,
    const pybind11::object& step, const pybind11::object& index, int64_t num_ids) {
  Sym rows{"R"}, vocab{"V"};
  sampling::SampleParams p{};
  const TensorRef& x = args.required("logits", logits);
  Arg(args.op(), "logits", x).dtype({DType::f32, DType::f16, DType::bf16});
  p.logits = logits_of(args.op(), x, rows, vocab);
  check_num_ids(args.op(), num_ids, vocab.value);
  p.num_ids = num_ids;
  const TensorRef& ids_out = args.required("token_ids", token_ids, true);
  Arg(args.op(), "token_ids", ids_out).dtype({DType::i64}).shape({rows}).contiguous();
  p.token_ids = ids_out.ptr<int64_t>();
  const TensorRef& status_out = args.required("status", status, true);
  Arg(args.op(), "status", status_out).dtype({DType::i32}).shape({rows}).contiguous();
  p.status = status_out.ptr<int32_t>();
  p.temperature = args.values<float>("temperature", temperature, DType::f32, rows);
  p.top_k = args.values<int32_t>("top_k", top_k, DType::i32, rows);
  p.top_p = args.values<double>("top_p", top_p, DType::f64, rows);
  p.min_p = args.values<double>("min_p", min_p, DType::f64, rows);
  p.seed = args.values<int64_t>("seed", seed, DType::i64, rows);
  p.step = args.values<int64_t>("step", step, DType::i64, rows);
  p.index = args.values<int64_t>("index", index, DType::i64, rows);
  args.check_overlaps();
  return p;
}

// (offsets, ids, values): offsets [R + 1], ids and values [N]; all None where no row has any.
inline sampling::RaggedIds ragged(SamplingArgs& args, const char* offsets_name, const char* ids_name,
                                  const pybind11::object& offsets, const pybind11::object& ids, int64_t rows,
                                  Sym& count) {
  const TensorRef* starts = args.optional(offsets_name, offsets);
  const TensorRef* list = args.vector(ids_name, ids, DType::i32, count);
  if (!starts != !list) {
    fail_expected(args.op(), ids_name, std::string("a tensor with ") + offsets_name + ", or None without",
                  starts ? "None" : "a tensor");
  }
  if (!starts) return {};
  Arg(args.op(), offsets_name, *starts).dtype({DType::i64}).shape({rows + 1}).contiguous();
  return {starts->ptr<int64_t>(), list->ptr<int32_t>(), count.value};
}

struct ProcessorObjects {  // as Python passes them
  const pybind11::object &logits, &allowed_offsets, &allowed_ids, &banned_offsets, &banned_ids, &bias_offsets,
      &bias_ids, &bias, &seen_offsets, &seen_ids, &seen_counts, &repetition, &frequency, &presence;
};

inline sampling::ProcessorParams fill_logits_processors(SamplingArgs& args, const ProcessorObjects& o,
                                                        int64_t num_ids) {
  Sym rows{"R"}, vocab{"V"};
  sampling::ProcessorParams p{};
  const TensorRef& x = args.required("logits", o.logits, true);
  Arg(args.op(), "logits", x).dtype({DType::f32});
  p.logits = logits_of(args.op(), x, rows, vocab);
  check_num_ids(args.op(), num_ids, vocab.value);
  p.num_ids = num_ids;
  Sym allowed{"A"}, banned{"N"}, biased{"B"}, seen{"S"};
  p.allowed =
      ragged(args, "allowed_offsets", "allowed_ids", o.allowed_offsets, o.allowed_ids, rows.value, allowed);
  p.banned = ragged(args, "banned_offsets", "banned_ids", o.banned_offsets, o.banned_ids, rows.value, banned);
  p.biased = ragged(args, "bias_offsets", "bias_ids", o.bias_offsets, o.bias_ids, rows.value, biased);
  if (p.biased.offsets) p.bias = args.required_values<float>("bias", o.bias, DType::f32, biased);
  p.seen = ragged(args, "seen_offsets", "seen_ids", o.seen_offsets, o.seen_ids, rows.value, seen);
  if (p.seen.offsets) {
    p.seen_count = args.required_values<int32_t>("seen_counts", o.seen_counts, DType::i32, seen);
    p.repetition = args.required_values<float>("repetition_penalty", o.repetition, DType::f32, rows);
    p.frequency = args.required_values<float>("frequency_penalty", o.frequency, DType::f32, rows);
    p.presence = args.required_values<float>("presence_penalty", o.presence, DType::f32, rows);
  }
  args.check_overlaps();
  return p;
}

inline sampling::LogprobParams fill_token_logprobs(SamplingArgs& args, const pybind11::object& ids,
                                                   const pybind11::object& logprobs,
                                                   const pybind11::object& ranks,
                                                   const pybind11::object& logits,
                                                   const pybind11::object& token_ids,
                                                   const pybind11::object& rows_object, int64_t num_ids) {
  constexpr int64_t kMostTop = 256;
  Sym rows{"R"}, vocab{"V"}, n{"N"}, width{"1 + num_top"};
  sampling::LogprobParams p{};
  const TensorRef& x = args.required("logits", logits);
  Arg(args.op(), "logits", x).dtype({DType::f32, DType::f16, DType::bf16});
  p.logits = logits_of(args.op(), x, rows, vocab);
  check_num_ids(args.op(), num_ids, vocab.value);
  p.num_ids = num_ids;
  const TensorRef* selected = args.vector("rows", rows_object, DType::i64, n);
  if (selected) {
    p.rows = selected->ptr<int64_t>();
  } else {
    n.value = rows.value;
  }
  p.token_ids = args.required_values<int64_t>("token_ids", token_ids, DType::i64, n);
  p.count = n.value;
  const TensorRef& ids_out = args.required("ids", ids, true);
  Arg(args.op(), "ids", ids_out).dtype({DType::i64}).shape({n, width}).contiguous();
  p.ids = ids_out.ptr<int64_t>();
  p.num_top = width.value - 1;
  const int64_t most = num_ids < kMostTop ? num_ids : kMostTop;
  if (p.num_top < 0 || p.num_top > most) {
    fail_expected(args.op(), "num_top", "0 to " + std::to_string(most) + " (at most num_ids)",
                  std::to_string(p.num_top));
  }
  const TensorRef& logprobs_out = args.required("logprobs", logprobs, true);
  Arg(args.op(), "logprobs", logprobs_out).dtype({DType::f64}).shape({n, width}).contiguous();
  p.logprobs = logprobs_out.ptr<double>();
  const TensorRef& ranks_out = args.required("ranks", ranks, true);
  Arg(args.op(), "ranks", ranks_out).dtype({DType::i64}).shape({n}).contiguous();
  p.ranks = ranks_out.ptr<int64_t>();
  args.check_overlaps();
  return p;
}

// Defines the three ops in m; run.sample_tokens and so on take (args, params).
template <class Run>
void define_sampling_ops(pybind11::module_& m, const Run& run) {
  namespace py = pybind11;
  using Object = const py::object&;
  m.def(
      "sample_tokens",
      [run](Object token_ids, Object status, Object logits, Object temperature, Object top_k, Object top_p,
            Object min_p, Object seed, Object step, Object index, int64_t num_ids) {
        SamplingArgs args("sample_tokens");
        run.sample_tokens(args, fill_sample_tokens(args, token_ids, status, logits, temperature, top_k, top_p,
                                                   min_p, seed, step, index, num_ids));
      },
      py::arg("token_ids"), py::arg("status"), py::arg("logits"), py::arg("temperature"), py::arg("top_k"),
      py::arg("top_p"), py::arg("min_p"), py::arg("seed"), py::arg("step"), py::arg("index"),
      py::arg("num_ids"));
  m.def(
      "apply_logits_processors",
      [run](Object logits, int64_t num_ids, Object allowed_offsets, Object allowed_ids, Object banned_offsets,
            Object banned_ids, Object bias_offsets, Object bias_ids, Object bias, Object seen_offsets,
            Object seen_ids, Object seen_counts, Object repetition, Object frequency, Object presence) {
        SamplingArgs args("apply_logits_processors");
        const ProcessorObjects objects{logits,       allowed_offsets, allowed_ids, banned_offsets, banned_ids,
                                       bias_offsets, bias_ids,        bias,        seen_offsets,   seen_ids,
                                       seen_counts,  repetition,      frequency,   presence};
        run.apply_logits_processors(args, fill_logits_processors(args, objects, num_ids));
      },
      py::arg("logits"), py::arg("num_ids"), py::arg("allowed_offsets"), py::arg("allowed_ids"),
      py::arg("banned_offsets"), py::arg("banned_ids"), py::arg("bias_offsets"), py::arg("bias_ids"),
      py::arg("bias"), py::arg("seen_offsets"), py::arg("seen_ids"), py::arg("seen_counts"),
      py::arg("repetition_penalty"), py::arg("frequency_penalty"), py::arg("presence_penalty"));
  m.def(
      "token_logprobs",
      [run](Object ids, Object logprobs, Object ranks, Object logits, Object token_ids, Object rows,
            int64_t num_ids) {
        SamplingArgs args("token_logprobs");
        run.token_logprobs(args,
                           fill_token_logprobs(args, ids, logprobs, ranks, logits, token_ids, rows, num_ids));
      },
      py::arg("ids"), py::arg("logprobs"), py::arg("ranks"), py::arg("logits"), py::arg("token_ids"),
      py::arg("rows"), py::arg("num_ids"));
}

}  // namespace inferx
