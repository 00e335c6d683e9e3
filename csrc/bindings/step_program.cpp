// StepProgram for Python: what is recorded is checked once, what a step brings with it once per step.
#include "cpu/step_program.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/checks/attention_lists.h"
#include "bindings/checks/blocks.h"
#include "bindings/checks/norm.h"
#include "bindings/checks/paged_attention.h"
#include "bindings/checks/reshape_and_cache.h"
#include "bindings/checks/rotary.h"
#include "bindings/packed_weight.h"
#include "cpu/linear_int8.h"

namespace py = pybind11;

namespace inferx {
namespace {

using ColumnsArg = std::array<int64_t, 3>;  // buffer, first, width

// A cache tensor as it was when it was checked.
struct CacheLayout {
  void* data = nullptr;
  DType dtype = DType::other;
  std::array<int64_t, 8> sizes{};  // shape and strides

  static CacheLayout of(const TensorRef& t) {
    CacheLayout layout{t.data, t.dtype, {}};
    if (t.ndim != 4) return {};
    std::copy_n(t.shape, 4, layout.sizes.begin());
    std::copy_n(t.strides, 4, layout.sizes.begin() + 4);
    return layout;
  }
  bool operator==(const CacheLayout& o) const {
    return data == o.data && dtype == o.dtype && sizes == o.sizes;
  }
};

// What the ops recorded so far want of a layer's cache.
struct LayerNeeds {
  int64_t num_kv_heads = 0, head_dim = 0;
  CacheLayout keys, values;  // last checked
};

cpu::GatedActivation gated_activation(const char* op, const std::string& name) {
  if (name == "silu") return {cpu::Activation::silu};
  if (name == "gelu") return {cpu::Activation::gelu};
  if (name == "gelu_tanh") return {cpu::Activation::gelu_tanh};
  fail_expected(op, "activation", "silu, gelu or gelu_tanh", name);
}

class Program {
 public:
  explicit Program(int64_t out_width) : program_(width_of("StepProgram", "out_width", out_width)) {}

  int64_t add_buffer(int64_t width, int64_t slot) {
    check_idle();
    number("add_buffer", "slot", slot);
    return program_.add_buffer(width_of("add_buffer", "width", width), slot);
  }

  int64_t add_quantized(int64_t k, int64_t slot) {
    check_idle();
    number("add_quantized", "slot", slot);
    width_of("add_quantized", "k", k);
    if (k < 1 || k % cpu::kGroup != 0) {
      fail_expected("add_quantized", "k", "a positive multiple of 32", std::to_string(k));
    }
    return program_.add_quantized(k, slot);
  }

  void embedding(const WeightHandle& table, double scale, const ColumnsArg& out) {
    const cpu::Columns to = columns("embedding", "out", out, table.weight.k);
    vocab_ = std::min(vocab_, table.weight.n);
    keep(table);
    program_.embedding(table.weight, static_cast<float>(scale), to);
  }

  void zero(const ColumnsArg& x) { program_.zero(columns("zero", "x", x)); }

  void norm(const ColumnsArg& x, const py::object& weight, double eps, const ColumnsArg& out) {
    constexpr const char* op = "norm";
    const auto [values, size] = norm_weight(op, weight, eps);
    const cpu::Columns from = columns(op, "x", x), to = columns(op, "out", out, from.width);
    if (from.width % size != 0) {
      fail_expected(op, "weight", "a size that divides " + std::to_string(from.width), std::to_string(size));
    }
    if (x != out) check_apart(op, from, to);
    program_.norm(from, values, size, static_cast<float>(eps), to);
  }

  void add_norm(const ColumnsArg& x, const ColumnsArg& residual, const py::object& weight, double eps) {
    constexpr const char* op = "add_norm";
    const auto [values, size] = norm_weight(op, weight, eps);
    const cpu::Columns from = columns(op, "x", x, size), to = columns(op, "residual", residual, size);
    check_apart(op, from, to);
    program_.add_norm(from, to, values, static_cast<float>(eps));
  }

  void norm_quantize(const ColumnsArg& x, const std::optional<ColumnsArg>& residual, const py::object& weight,
                     double eps, int64_t out) {
    constexpr const char* op = "norm_quantize";
    const auto [values, size] = norm_weight(op, weight, eps);
    const cpu::Columns from = columns(op, "x", x, size);
    cpu::Columns added{};
    if (residual) {
      added = columns(op, "residual", *residual, size);
      check_apart(op, from, added);
    }
    quantized(op, "out", out, size);
    program_.norm_quantize(from, residual ? &added : nullptr, values, static_cast<float>(eps), out);
  }

  void quantize(const ColumnsArg& x, int64_t out) {
    const cpu::Columns from = columns("quantize", "x", x);
    quantized("quantize", "out", out, from.width);
    program_.quantize(from, out);
  }

  void linear(const ColumnsArg& x, const WeightHandle& w, const py::object& bias, const ColumnsArg& out) {
    constexpr const char* op = "linear";
    const cpu::Columns from = columns(op, "x", x, w.weight.k), to = columns(op, "out", out, w.weight.n);
    check_apart(op, from, to);
    program_.linear(from, w.weight, vector(op, "bias", bias, w.weight.n), to);
    keep(w);
  }

  void linear_int8(int64_t x, const WeightHandle& w, const py::object& bias, const ColumnsArg& out) {
    constexpr const char* op = "linear_int8";
    quantized(op, "x", x, w.weight.k);
    check_int8(op, w);
    const cpu::Columns to = columns(op, "out", out, w.weight.n);
    program_.linear_int8(x, w.weight, vector(op, "bias", bias, w.weight.n), to);
    keep(w);
  }

  void activate_and_mul(const std::string& activation, const ColumnsArg& x, const ColumnsArg& out) {
    constexpr const char* op = "activate_and_mul";
    const cpu::Columns to = columns(op, "out", out), from = columns(op, "x", x, 2 * to.width);
    check_apart(op, from, to);
    program_.activate_and_mul(gated_activation(op, activation), from, to);
  }

  void gate_up_int8(int64_t x, const WeightHandle& w, const py::object& bias, const std::string& activation,
                    int64_t out) {
    constexpr const char* op = "gate_up_int8";
    quantized(op, "x", x, w.weight.k);
    check_int8(op, w);
    if (w.weight.n % (2 * cpu::kTileColumns) != 0) {
      fail_expected(op, "weight", "rows that are a multiple of 64", std::to_string(w.weight.n));
    }
    quantized(op, "out", out, w.weight.n / 2);
    if (x == out) fail_expected(op, "out", "another buffer than x", std::to_string(out));
    program_.gate_up_int8(x, w.weight, vector(op, "bias", bias, w.weight.n), gated_activation(op, activation),
                          out);
    keep(w);
  }

  void clamp(const ColumnsArg& x, double limit) {
    if (!(limit > 0)) fail_expected("clamp", "limit", "a number above 0", std::to_string(limit));
    program_.clamp(columns("clamp", "x", x), static_cast<float>(limit));
  }

  void rope_and_cache(const ColumnsArg& query, const ColumnsArg& key, const ColumnsArg& value,
                      int64_t head_dim, int64_t rotary, int64_t layer) {
    constexpr const char* op = "rope_and_cache";
    const cpu::Columns q = columns(op, "query", query), k = columns(op, "key", key);
    const cpu::Columns v = columns(op, "value", value, k.width);
    check_apart(op, q, k);
    check_apart(op, q, v);
    check_apart(op, k, v);
    if (head_dim < 1 || q.width % head_dim != 0 || k.width % head_dim != 0) {
      fail_expected(op, "head_dim", "a number that divides the widths of query and key",
                    std::to_string(head_dim));
    }
    number(op, "rotary", rotary);
    need_layer(op, layer, k.width / head_dim, head_dim);
    const auto size = static_cast<size_t>(rotary) + 1;
    if (rotary_limits_.size() < size) rotary_limits_.resize(size, std::numeric_limits<int64_t>::max());
    rotary_limits_[rotary] = std::min(rotary_limits_[rotary], head_dim);
    program_.rope_and_cache(q, k, v, head_dim, rotary, layer);
  }

  void attention(const ColumnsArg& query, const ColumnsArg& out, int64_t head_dim, int64_t num_kv_heads,
                 int64_t layer, double scale, int64_t window, double softcap, const py::object& sinks) {
    constexpr const char* op = "attention";
    const cpu::Columns from = columns(op, "query", query), to = columns(op, "out", out, from.width);
    if (query != out) check_apart(op, from, to);
    if (head_dim < 1 || from.width % head_dim != 0) {
      fail_expected(op, "head_dim", "a number that divides the width of query", std::to_string(head_dim));
    }
    const int64_t heads = from.width / head_dim;
    check_attention_heads(op, heads, num_kv_heads, head_dim);
    check_attention_numbers(op, scale, softcap, window);
    need_layer(op, layer, num_kv_heads, head_dim);
    window = std::min<int64_t>(window, INT32_MAX);  // as in paged_attention
    widest_window_ = window == 0 ? INT64_MAX : std::max(widest_window_, window);
    const cpu::StepAttention a{layer,
                               num_kv_heads,
                               head_dim,
                               window,
                               static_cast<float>(scale),
                               static_cast<float>(softcap),
                               vector(op, "sinks", sinks, heads)};
    program_.attention(from, a, to);
  }

  void head(const WeightHandle& w, bool int8) {
    check_idle();
    if (w.weight.k != program_.width(0)) {
      fail_expected("head", "weight", "columns as buffer 0 has, " + std::to_string(program_.width(0)),
                    std::to_string(w.weight.k));
    }
    if (int8) check_int8("head", w);
    program_.head(w.weight, int8);
    keep(w);
    head_size_ = w.weight.n;
  }

  void run(const TensorRef& out, const TensorRef& ids, const py::sequence& rotaries,
           const TensorRef& slot_mapping, const TensorRef& block_tables, const TensorRef& cu_seqlens_q,
           const TensorRef& seq_lens, const py::sequence& caches, const py::object& logits_rows,
           const py::object& logits) {
    constexpr const char* op = "step";
    if (running_.exchange(true)) throw std::runtime_error("step: the program runs on another thread");
    const Release release{running_};

    Sym tokens{"T"};
    Arg(op, "input_ids", ids).dtype({DType::i64}).shape({tokens}).contiguous().on_cpu();
    Arg(op, "out", out).dtype({DType::f32}).shape({tokens, program_.width(0)}).on_cpu();
    Arg(op, "out", out).last_dim_contiguous().not_self_overlapping();
    Arg(op, "slot_mapping", slot_mapping).dtype({DType::i64}).shape({tokens}).contiguous().on_cpu();
    check_batch_lists(op, out, block_tables, cu_seqlens_q, seq_lens);
    const std::initializer_list<NamedTensor> lists = {{"input_ids", &ids},
                                                      {"slot_mapping", &slot_mapping},
                                                      {"block_tables", &block_tables},
                                                      {"cu_seqlens_q", &cu_seqlens_q},
                                                      {"seq_lens", &seq_lens}};
    check_disjoint(op, "out", out, lists);
    check_ids(op, ids);

    cpu::StepInputs in{};
    in.num_tokens = tokens.value;
    in.batch = seq_lens.size(0);
    in.ids = ids.ptr<int64_t>();
    in.slot_mapping = slot_mapping.ptr<int64_t>();
    in.block_tables = block_tables.ptr<int32_t>();
    in.block_tables_stride = block_tables.stride(0);
    in.cu_seqlens_q = cu_seqlens_q.ptr<int32_t>();
    in.seq_lens = seq_lens.ptr<int32_t>();
    in.out = out.ptr<float>();
    in.out_stride = out.stride(0);
    TensorRef row_list, logits_out;
    const bool wants_logits = load_optional(op, "logits_rows", logits_rows, row_list);
    if (load_optional(op, "logits", logits, logits_out) != wants_logits) {
      fail_argument(op, "logits", "expected together with logits_rows, or neither");
    }
    const TensorRef* written = wants_logits ? &logits_out : nullptr;  // besides `out`
    std::vector<py::object> held;  // what lists hold, should another thread change them
    bind_rotaries(op, rotaries, out, written, tokens, held, in);
    bind_caches(op, caches, out, written, held);
    if (!layers_.empty()) {
      const cpu::StepCache& cache = program_.caches.front();
      check_slots(op, slot_mapping, cache.num_blocks * cache.block_size);
      check_lengths(op, in.cu_seqlens_q, in.seq_lens, in.batch, in.num_tokens,
                    block_tables.size(1) * cache.block_size);
      cpu::AttentionParams seen{};
      seen.block_tables = in.block_tables;
      seen.block_tables_stride = in.block_tables_stride;
      seen.cu_seqlens_q = in.cu_seqlens_q;
      seen.seq_lens = in.seq_lens;
      seen.batch = in.batch;
      seen.block_size = cache.block_size;
      seen.window = widest_window_ == INT64_MAX ? 0 : widest_window_;
      check_block_ids(op, seen, cache.num_blocks);
    }
    if (wants_logits) {
      check_disjoint(op, "logits", logits_out, lists);
      bind_logits(op, row_list, logits_out, out, in);
    }
    py::gil_scoped_release nogil;
    program_.run(in);
  }

 private:
  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false); }
  };

  // Ops are not added under a step that runs on another thread.
  void check_idle() const {
    if (running_.load()) throw std::runtime_error("step: the program runs on another thread");
  }

  static int64_t positive(const char* op, const char* name, int64_t value) {
    if (value < 1) fail_expected(op, name, "a positive number", std::to_string(value));
    return value;
  }

  // Sizes are multiplied with numbers of tokens, and numbers become sizes of tables.
  static constexpr int64_t kWidest = int64_t{1} << 28, kMostNumbers = 1 << 16;
  static int64_t width_of(const char* op, const char* name, int64_t value) {
    if (positive(op, name, value) > kWidest) {
      fail_expected(op, name, "at most " + std::to_string(kWidest), std::to_string(value));
    }
    return value;
  }
  static int64_t number(const char* op, const char* name, int64_t value) {
    if (value < 0 || value >= kMostNumbers) {
      fail_expected(op, name, "0 to " + std::to_string(kMostNumbers - 1), std::to_string(value));
    }
    return value;
  }

  cpu::Columns columns(const char* op, const char* name, const ColumnsArg& arg, int64_t width = 0) const {
    check_idle();
    const auto [buffer, first, count] = arg;
    const std::string given =
        "(" + std::to_string(buffer) + ", " + std::to_string(first) + ", " + std::to_string(count) + ")";
    if (buffer < 0 || buffer >= program_.num_buffers() || first < 0 || count < 1 ||
        first > program_.width(buffer) - count) {
      fail_expected(op, name, "(buffer, first column, width) inside of a buffer", given);
    }
    if (width > 0 && count != width) {
      fail_expected(op, name, std::to_string(width) + " columns", given);
    }
    return {buffer, first, count};
  }

  static void check_apart(const char* op, const cpu::Columns& a, const cpu::Columns& b) {
    if (a.buffer != b.buffer || a.first + a.width <= b.first || b.first + b.width <= a.first) return;
    fail_argument(op, "out", "shares columns with another argument");
  }

  void quantized(const char* op, const char* name, int64_t buffer, int64_t k) const {
    check_idle();
    if (buffer < 0 || buffer >= program_.num_quantized() || program_.quantized_width(buffer) != k) {
      fail_expected(op, name, "a quantised buffer of width " + std::to_string(k), std::to_string(buffer));
    }
  }

  static void check_int8(const char* op, const WeightHandle& w) {
    if (cpu::has_int8_kernel(w.weight.format)) return;
    fail_expected(op, "weight", "a block-quantised type", cpu::traits_of(w.weight.format).name);
  }

  void keep(const WeightHandle& w) { kept_.push_back(w.buffer); }

  struct NormWeight {
    const float* values;
    int64_t size;
  };
  NormWeight norm_weight(const char* op, const py::object& weight, double eps) {
    TensorRef t;
    if (!load_tensor(weight.ptr(), t)) fail_expected(op, "weight", "a torch.Tensor", "another type");
    check_eps(op, eps);
    const int64_t size = positive(op, "weight", t.numel());
    return {vector(op, "weight", weight, size), size};
  }

  // A vector of n floats, which the program keeps, or null.
  const float* vector(const char* op, const char* name, const py::object& object, int64_t n) {
    TensorRef t;
    if (!load_optional(op, name, object, t)) return nullptr;
    Arg(op, name, t).dtype({DType::f32}).shape({n}).contiguous().on_cpu();
    kept_.push_back(object);
    return t.ptr<float>();
  }

  void need_layer(const char* op, int64_t layer, int64_t heads, int64_t head_dim) {
    number(op, "layer", layer);
    if (layers_.size() <= static_cast<size_t>(layer)) layers_.resize(layer + 1);
    LayerNeeds& needs = layers_[layer];
    if (needs.head_dim != 0 && (needs.num_kv_heads != heads || needs.head_dim != head_dim)) {
      fail_expected(op, "layer", "the KV heads that its other ops have", std::to_string(heads));
    }
    needs.num_kv_heads = heads;
    needs.head_dim = head_dim;
    program_.caches.resize(layers_.size());
  }

  void check_ids(const char* op, const TensorRef& ids) const {
    const int64_t* id = ids.ptr<int64_t>();
    for (int64_t t = 0; t < ids.size(0); ++t) {
      if (id[t] >= 0 && id[t] < vocab_) continue;
      throw py::index_error(std::string(op) + ": input_ids: expected 0 <= id < " + std::to_string(vocab_) +
                            ", got " + std::to_string(id[t]) + " at index " + std::to_string(t));
    }
  }

  static std::pair<py::object, py::object> pair_of(const char* op, const std::string& name,
                                                   const py::object& item) {
    if (!py::isinstance<py::tuple>(item) || py::len(item) != 2) {
      throw py::type_error(std::string(op) + ": " + name + ": expected a tuple of two tensors");
    }
    const auto tuple = py::reinterpret_borrow<py::tuple>(item);
    return {tuple[0], tuple[1]};
  }

  // A tensor in a list, held until the step is over.
  static void load_item(const char* op, const std::string& name, const py::object& item, TensorRef& t,
                        std::vector<py::object>& held) {
    if (!load_tensor(item.ptr(), t))
      throw py::type_error(std::string(op) + ": " + name + ": expected a torch.Tensor");
    held.push_back(item);
  }

  void bind_rotaries(const char* op, const py::sequence& rotaries, const TensorRef& out,
                     const TensorRef* logits, Sym& tokens, std::vector<py::object>& held,
                     cpu::StepInputs& in) const {
    if (rotaries.size() != rotary_limits_.size()) {
      fail_expected(op, "rotaries", std::to_string(rotary_limits_.size()) + " pairs of index and table",
                    std::to_string(rotaries.size()));
    }
    for (size_t i = 0; i < rotaries.size(); ++i) {
      const auto pair = pair_of(op, indexed("rotaries", i), rotaries[i]);
      TensorRef index, table;
      load_item(op, "positions", pair.first, index, held);
      load_item(op, "cos_sin_cache", pair.second, table, held);
      Sym rows{"P"}, rot_dim{"rot_dim"};
      Arg(op, "positions", index).dtype({DType::i64}).shape({tokens}).on_cpu();
      const Arg arg(op, "cos_sin_cache", table);
      arg.dtype({DType::f32}).shape({rows, rot_dim}).last_dim_contiguous().on_cpu();
      if (rot_dim.value % 2 != 0 || rot_dim.value > rotary_limits_[i]) {
        arg.expected("an even rot_dim of at most head_size=" + std::to_string(rotary_limits_[i]),
                     shape_string(table));
      }
      check_disjoint(op, "out", out, {{"positions", &index}, {"cos_sin_cache", &table}});
      check_positions(op, index, rows.value);
      if (logits) {
        check_disjoint(op, "logits", *logits, {{"positions", &index}, {"cos_sin_cache", &table}});
      }
      in.rotaries.push_back(
          {index.ptr<int64_t>(), index.stride(0), table.ptr<float>(), table.stride(0), rot_dim.value});
    }
  }

  void bind_caches(const char* op, const py::sequence& caches, const TensorRef& out, const TensorRef* logits,
                   std::vector<py::object>& held) {
    if (caches.size() != layers_.size()) {
      fail_expected(op, "kv", std::to_string(layers_.size()) + " layers' caches",
                    std::to_string(caches.size()));
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      TensorRef keys, values;
      const std::string layer = indexed("kv", i);
      const auto pair = pair_of(op, layer, caches[i]);
      load_item(op, layer, pair.first, keys, held);
      load_item(op, layer, pair.second, values, held);
      LayerNeeds& needs = layers_[i];
      const CacheLayout k = CacheLayout::of(keys), v = CacheLayout::of(values);
      const bool known = k.data != nullptr && k == needs.keys && v == needs.values;
      if (!known) {
        needs.keys = needs.values = {};
        check_cache(op, indexed("key_caches", i).c_str(), keys, needs);
        check_cache(op, indexed("value_caches", i).c_str(), values, needs);
        Arg(op, indexed("value_caches", i).c_str(), values).same_shape("keys", keys).same_dtype("keys", keys);
        check_disjoint(op, indexed("value_caches", i).c_str(), values, "keys", keys);
      }
      program_.caches[i] = {{keys.data, keys.stride(0), keys.stride(1), keys.stride(2)},
                            {values.data, values.stride(0), values.stride(1), values.stride(2)},
                            keys.dtype,
                            keys.size(0),
                            keys.size(1)};
      const cpu::StepCache &first = program_.caches.front(), &cache = program_.caches[i];
      if (cache.num_blocks != first.num_blocks || cache.block_size != first.block_size) {
        fail_expected(op, indexed("key_caches", i).c_str(), "blocks as the first layer's",
                      shape_string(keys));
      }
      check_disjoint(op, "out", out, {{"keys", &keys}, {"values", &values}});
      if (logits) check_disjoint(op, "logits", *logits, {{"keys", &keys}, {"values", &values}});
      needs.keys = k;
      needs.values = v;
    }
  }

  static void check_cache(const char* op, const char* name, const TensorRef& cache, const LayerNeeds& needs) {
    Sym blocks{"num_blocks"}, size{"block_size"};
    Arg(op, name, cache)
        .on_cpu()
        .dtype({DType::f32, DType::f16, DType::bf16})
        .shape({blocks, size, needs.num_kv_heads, needs.head_dim})
        .last_dim_contiguous()
        .not_self_overlapping();
    if (size.value < 1) Arg(op, name, cache).expected("a block size of at least 1", "0");
  }

  void bind_logits(const char* op, const TensorRef& rows, const TensorRef& logits, const TensorRef& out,
                   cpu::StepInputs& in) const {
    if (head_size_ == 0) fail_expected(op, "logits_rows", "None without a head", "a tensor");
    Sym count{"R"};
    Arg(op, "logits_rows", rows).dtype({DType::i64}).shape({count}).contiguous().on_cpu();
    Arg(op, "logits", logits).dtype({DType::f32}).shape({count, head_size_}).on_cpu();
    Arg(op, "logits", logits).last_dim_contiguous().not_self_overlapping();
    check_disjoint(op, "logits", logits, {{"logits_rows", &rows}, {"out", &out}});
    check_disjoint(op, "out", out, "logits_rows", rows);
    for (int64_t i = 0; i < count.value; ++i) {
      const int64_t row = rows.ptr<int64_t>()[i];
      if (row >= 0 && row < in.num_tokens) continue;
      throw py::index_error(std::string(op) + ": logits_rows[" + std::to_string(i) +
                            "]: expected 0 <= row < " + std::to_string(in.num_tokens) + ", got " +
                            std::to_string(row));
    }
    in.logits_rows = rows.ptr<int64_t>();
    in.num_logits = count.value;
    in.logits = logits.ptr<float>();
    in.logits_stride = logits.stride(0);
  }

  cpu::StepProgram program_;
  std::vector<py::object> kept_;  // the memory of weights
  std::vector<LayerNeeds> layers_;
  std::vector<int64_t> rotary_limits_;                   // of each table, the smallest head
  int64_t vocab_ = std::numeric_limits<int64_t>::max();  // of the smallest table
  int64_t head_size_ = 0, widest_window_ = 0;
  std::atomic<bool> running_{false};
};

}  // namespace

void bind_step_program(py::module_& m) {
  py::class_<Program>(m, "StepProgram")
      .def(py::init<int64_t>(), py::arg("out_width"))
      .def("add_buffer", &Program::add_buffer)
      .def("add_quantized", &Program::add_quantized)
      .def("embedding", &Program::embedding)
      .def("zero", &Program::zero)
      .def("norm", &Program::norm)
      .def("add_norm", &Program::add_norm)
      .def("norm_quantize", &Program::norm_quantize)
      .def("quantize", &Program::quantize)
      .def("linear", &Program::linear)
      .def("linear_int8", &Program::linear_int8)
      .def("activate_and_mul", &Program::activate_and_mul)
      .def("gate_up_int8", &Program::gate_up_int8)
      .def("clamp", &Program::clamp)
      .def("rope_and_cache", &Program::rope_and_cache)
      .def("attention", &Program::attention)
      .def("head", &Program::head)
      .def("run", &Program::run, py::arg("out"), py::arg("input_ids"), py::arg("rotaries"),
           py::arg("slot_mapping"), py::arg("block_tables"), py::arg("cu_seqlens_q"), py::arg("seq_lens"),
           py::arg("kv"), py::arg("logits_rows"), py::arg("logits"));
}

}  // namespace inferx
