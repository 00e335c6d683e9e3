#include "cpu/attention.h"

#include <algorithm>

#include "bindings/attention_params.h"
#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/checks/attention_lists.h"
#include "bindings/checks/paged_attention.h"
#include "cpu/attention_plan.h"

namespace py = pybind11;

namespace inferx {
namespace {

// split_size and workspace are the device kernels': this one cuts the work by itself, to the same effect.
void paged_attention(const TensorRef& out, const py::object& lse_object, const TensorRef& query,
                     const TensorRef& key_cache, const TensorRef& value_cache, const TensorRef& block_tables,
                     const TensorRef& cu_seqlens_q, const TensorRef& seq_lens, double scale, int64_t window,
                     double softcap, const py::object& sinks_object, const py::object& k_scale_object,
                     const py::object& v_scale_object, const py::object& /*max_query_len*/,
                     int64_t /*split_size*/, const py::object& /*workspace*/, bool causal) {
  constexpr const char* op = "paged_attention";
  const OptionalTensor lse(op, "lse", lse_object), sinks(op, "sinks", sinks_object),
      k_scale(op, "k_scale", k_scale_object), v_scale(op, "v_scale", v_scale_object);
  const PagedAttentionArgs args{out, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens,
                                lse, sinks, k_scale,   v_scale,     scale,        softcap,      window};
  Arg(op, "query", query).on_cpu();
  check_paged_attention(op, args, {DType::f32}, {DType::f32, DType::f16, DType::bf16});
  if (!causal) fail_expected(op, "causal", "True on the CPU", "False");

  cpu::AttentionParams p{};
  fill_attention_params(p, args, key_cache);
  p.key_stride_head = key_cache.stride(2);
  p.value_cache = value_cache.data;
  p.value_stride_block = value_cache.stride(0);
  p.value_stride_slot = value_cache.stride(1);
  p.value_stride_head = value_cache.stride(2);
  p.num_kv_heads = args.num_kv_heads();
  p.value_dim = p.head_dim;
  p.softcap = static_cast<float>(softcap);
  p.window =
      std::min<int64_t>(window, INT32_MAX);  // seq_lens are int32: longer ones see all; sums stay in range
  p.sinks = sinks.ptr<float>();
  check_lengths(op, p.cu_seqlens_q, p.seq_lens, p.batch, args.num_tokens(),
                block_tables.size(1) * p.block_size);
  check_block_ids(op, p, key_cache.size(0));
  py::gil_scoped_release release;
  cpu::paged_attention(p);
}

void merge_attn_states(const TensorRef& out, const py::object& out_lse_object, const TensorRef& prefix,
                       const TensorRef& prefix_lse, const TensorRef& suffix, const TensorRef& suffix_lse) {
  constexpr const char* op = "merge_attn_states";
  Sym T{"T"}, Hq{"Hq"}, D{"D"};
  TensorRef out_lse;
  const bool has_lse = load_optional(op, "output_lse", out_lse_object, out_lse);
  Arg(op, "prefix_output", prefix).on_cpu().dtype({DType::f32}).shape({T, Hq, D}).last_dim_contiguous();
  Arg(op, "suffix_output", suffix).on_cpu().dtype({DType::f32}).shape({T, Hq, D}).last_dim_contiguous();
  Arg(op, "prefix_lse", prefix_lse).on_cpu().dtype({DType::f32}).shape({T, Hq});
  Arg(op, "suffix_lse", suffix_lse).on_cpu().dtype({DType::f32}).shape({T, Hq});
  Arg(op, "output", out)
      .on_cpu()
      .dtype({DType::f32})
      .shape({T, Hq, D})
      .last_dim_contiguous()
      .not_self_overlapping();
  check_same_or_disjoint(op, "output", out, "prefix_output", prefix);
  check_same_or_disjoint(op, "output", out, "suffix_output", suffix);
  check_disjoint(op, "output", out, {{"prefix_lse", &prefix_lse}, {"suffix_lse", &suffix_lse}});
  if (has_lse) {
    Arg(op, "output_lse", out_lse).on_cpu().dtype({DType::f32}).shape({T, Hq}).not_self_overlapping();
    check_same_or_disjoint(op, "output_lse", out_lse, "prefix_lse", prefix_lse);
    check_same_or_disjoint(op, "output_lse", out_lse, "suffix_lse", suffix_lse);
    check_disjoint(op, "output_lse", out_lse, "output", out);
    check_disjoint(op, "output_lse", out_lse, "prefix_output", prefix);
    check_disjoint(op, "output_lse", out_lse, "suffix_output", suffix);
  }
  cpu::MergeStatesParams p{};
  p.prefix = prefix.ptr<float>();
  p.suffix = suffix.ptr<float>();
  p.prefix_lse = prefix_lse.ptr<float>();
  p.suffix_lse = suffix_lse.ptr<float>();
  p.out = out.ptr<float>();
  p.prefix_stride_token = prefix.stride(0);
  p.prefix_stride_head = prefix.stride(1);
  p.suffix_stride_token = suffix.stride(0);
  p.suffix_stride_head = suffix.stride(1);
  p.prefix_lse_stride_token = prefix_lse.stride(0);
  p.prefix_lse_stride_head = prefix_lse.stride(1);
  p.suffix_lse_stride_token = suffix_lse.stride(0);
  p.suffix_lse_stride_head = suffix_lse.stride(1);
  p.out_stride_token = out.stride(0);
  p.out_stride_head = out.stride(1);
  if (has_lse) {
    p.out_lse = out_lse.ptr<float>();
    p.out_lse_stride_token = out_lse.stride(0);
    p.out_lse_stride_head = out_lse.stride(1);
  }
  p.num_tokens = T.value;
  p.num_heads = Hq.value;
  p.head_dim = D.value;
  py::gil_scoped_release release;
  cpu::merge_attn_states(p);
}

// For tests: how a batch would be cut, as (items, merges, partial_floats) of tuples in AttentionItem's order.
py::tuple attention_plan(const TensorRef& cu_seqlens_q, const TensorRef& seq_lens, int64_t num_heads,
                         int64_t num_kv_heads, int64_t head_dim, int64_t window, int threads) {
  constexpr const char* op = "_attention_plan";
  Sym batch{"batch"};
  Arg(op, "seq_lens", seq_lens).on_cpu().dtype({DType::i32}).shape({batch}).contiguous();
  Arg(op, "cu_seqlens_q", cu_seqlens_q).on_cpu().dtype({DType::i32}).shape({batch.value + 1}).contiguous();
  cpu::AttentionParams p{};
  p.cu_seqlens_q = cu_seqlens_q.ptr<int32_t>();
  p.seq_lens = seq_lens.ptr<int32_t>();
  p.batch = batch.value;
  p.num_heads = num_heads;
  p.num_kv_heads = num_kv_heads;
  p.head_dim = p.value_dim = head_dim;
  p.window = window;
  p.cache_dtype = DType::f32;
  const cpu::AttentionPlan plan = cpu::plan_attention(p, threads);
  auto tuples = [](const std::vector<cpu::AttentionItem>& items) {
    py::list list;
    for (const cpu::AttentionItem& i : items) {
      list.append(py::make_tuple(i.request, i.first_kv_head, i.num_kv_heads, i.first_query, i.num_queries,
                                 i.first_split, i.end_split, i.partial));
    }
    return list;
  };
  return py::make_tuple(tuples(plan.items), tuples(plan.merges), plan.partial_floats);
}

}  // namespace

void bind_attention(py::module_& m) {
  m.def("paged_attention", &paged_attention, py::arg("out"), py::arg("lse"), py::arg("query"),
        py::arg("key_cache"), py::arg("value_cache"), py::arg("block_tables"), py::arg("cu_seqlens_q"),
        py::arg("seq_lens"), py::arg("scale"), py::arg("window") = 0, py::arg("softcap") = 0.0,
        py::arg("sinks") = py::none(), py::arg("k_scale") = py::none(), py::arg("v_scale") = py::none(),
        py::arg("max_query_len") = py::none(), py::arg("split_size") = 512, py::arg("workspace") = py::none(),
        py::arg("causal") = true);
  m.def("_attention_plan", &attention_plan, py::arg("cu_seqlens_q"), py::arg("seq_lens"),
        py::arg("num_heads"), py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("window"),
        py::arg("threads"));
  m.def("merge_attn_states", &merge_attn_states, py::arg("output"), py::arg("output_lse"),
        py::arg("prefix_output"), py::arg("prefix_lse"), py::arg("suffix_output"), py::arg("suffix_lse"));
}

}  // namespace inferx
