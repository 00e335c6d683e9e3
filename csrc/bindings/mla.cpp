#include "cpu/mla.h"

#include "bindings/attention_params.h"
#include "bindings/bindings.h"
#include "bindings/checks/attention_lists.h"
#include "bindings/checks/mla_attention.h"
#include "bindings/checks/reshape_and_cache.h"

namespace py = pybind11;

namespace inferx {
namespace {

void concat_and_cache_mla(const TensorRef& kv_c, const TensorRef& k_pe, const TensorRef& kv_cache,
                          const TensorRef& slot_mapping) {
  constexpr const char* op = "concat_and_cache_mla";
  Arg(op, "kv_c", kv_c).on_cpu();
  const MlaCacheWriteArgs args{kv_c, k_pe, kv_cache, slot_mapping};
  check_mla_cache_write(op, args);
  check_slots(op, slot_mapping, args.num_slots());
  cpu::ConcatAndCacheMlaParams p{};
  p.kv_c = {kv_c.data, kv_c.stride(0), kv_c.size(1)};
  p.k_pe = {k_pe.data, k_pe.stride(0), k_pe.size(1)};
  p.input_dtype = kv_c.dtype;
  p.kv_cache = kv_cache.data;
  p.cache_stride_block = kv_cache.stride(0);
  p.cache_stride_slot = kv_cache.stride(1);
  p.cache_dtype = kv_cache.dtype;
  p.slot_mapping = slot_mapping.ptr<int64_t>();
  p.num_tokens = kv_c.size(0);
  p.block_size = kv_cache.size(1);
  p.num_slots = args.num_slots();
  py::gil_scoped_release nogil;
  cpu::concat_and_cache_mla(p);
}

// max_query_len and workspace are the device kernels'.
void mla_attention(const TensorRef& out, const py::object& lse_object, const TensorRef& query,
                   const TensorRef& kv_cache, const TensorRef& block_tables, const TensorRef& cu_seqlens_q,
                   const TensorRef& seq_lens, double scale, int64_t value_dim,
                   const py::object& /*max_query_len*/, const py::object& /*workspace*/) {
  constexpr const char* op = "mla_attention";
  const OptionalTensor lse(op, "lse", lse_object);
  const MlaAttentionArgs args{out,      query, kv_cache, block_tables, cu_seqlens_q,
                              seq_lens, lse,   scale,    value_dim};
  Arg(op, "query", query).on_cpu();
  check_mla_attention(op, args, {DType::f32}, {DType::f32, DType::f16, DType::bf16});

  cpu::AttentionParams p{};
  fill_attention_params(p, args, kv_cache);
  // One KV head, whose values are the beginnings of its keys.
  p.value_cache = p.key_cache;
  p.value_stride_block = p.key_stride_block;
  p.value_stride_slot = p.key_stride_slot;
  p.num_kv_heads = 1;
  p.value_dim = value_dim;
  check_lengths(op, p.cu_seqlens_q, p.seq_lens, p.batch, args.num_tokens(),
                block_tables.size(1) * p.block_size);
  check_block_ids(op, p, args.num_blocks());
  py::gil_scoped_release nogil;
  cpu::paged_attention(p);
}

}  // namespace

void bind_mla(py::module_& m) {
  m.def("concat_and_cache_mla", &concat_and_cache_mla, py::arg("kv_c"), py::arg("k_pe"), py::arg("kv_cache"),
        py::arg("slot_mapping"));
  m.def("mla_attention", &mla_attention, py::arg("out"), py::arg("lse"), py::arg("query"),
        py::arg("kv_cache"), py::arg("block_tables"), py::arg("cu_seqlens_q"), py::arg("seq_lens"),
        py::arg("scale"), py::arg("value_dim"), py::arg("max_query_len") = py::none(),
        py::arg("workspace") = py::none());
}

}  // namespace inferx
