#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>

#include "bindings/checks/alignment.h"
#include "bindings/checks/paged_attention.h"
#include "bindings/cuda/attention_params.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "kernels/attention/params.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* op = "paged_attention";

// Splits are whole tiles of 64 keys of the kernels.
constexpr int64_t kSplitUnit = 64;

// What the tensor core kernels ask for beyond check_paged_attention.
void check_tensor_core(const PagedAttentionArgs& args) {
  if (args.key_cache.dtype != DType::f8e4m3 && args.key_cache.dtype != args.query.dtype) {
    Arg(op, "key_cache", args.key_cache)
        .expected("dtype " + std::string(dtype_name(args.query.dtype)) + " as query, or float8_e4m3fn",
                  dtype_name(args.key_cache.dtype));
  }
  if (args.key_cache.size(1) % 8 != 0) {
    Arg(op, "key_cache", args.key_cache)
        .expected("a block size that is a multiple of 8", std::to_string(args.key_cache.size(1)));
  }
  const int64_t cache_bytes = args.key_cache.dtype == DType::f8e4m3 ? 8 : 16;
  check_aligned(op, "query", args.query, 16);
  check_aligned(op, "out", args.out, 16);
  check_aligned(op, "key_cache", args.key_cache, cache_bytes);
  check_aligned(op, "value_cache", args.value_cache, cache_bytes);
}

cuda::PagedAttentionParams make_params(const PagedAttentionArgs& args) {
  const auto& [out, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens, lse, sinks, k_scale,
               v_scale, scale, softcap, window] = args;
  cuda::PagedAttentionParams p{};
  fill_device_attention_params(p, args, key_cache);
  p.key_stride_head = key_cache.stride(2);
  p.value_cache = value_cache.data;
  p.value_stride_block = value_cache.stride(0);
  p.value_stride_slot = value_cache.stride(1);
  p.value_stride_head = value_cache.stride(2);
  p.k_scale = k_scale.ptr<float>();
  p.v_scale = v_scale.ptr<float>();
  p.k_scale_stride = k_scale.given && k_scale.tensor.numel() > 1 ? 1 : 0;
  p.v_scale_stride = v_scale.given && v_scale.tensor.numel() > 1 ? 1 : 0;
  p.copy_bytes = is_aligned(key_cache, 16) && is_aligned(value_cache, 16) ? 16 : 8;
  p.num_kv_heads = args.num_kv_heads();
  p.softcap = static_cast<float>(softcap);
  p.window = std::min<int64_t>(window, INT32_MAX);
  p.sinks = sinks.ptr<float>();
  return p;
}

// The scratch of decode.cu lies in one buffer: the plan, maxima and sums, partial outputs.
void carve_workspace(cuda::PagedAttentionParams& p, const TensorRef& workspace) {
  const int64_t plan_bytes = (p.batch * 4 + 15) / 16 * 16,
                row_bytes = (2 + cuda::padded_head_dim(p.head_dim)) * 4;
  const int64_t rows = (workspace.numel() - plan_bytes) / row_bytes;
  if (rows <= 0) return;
  p.max_partials =
      std::min<int64_t>(rows, INT32_MAX) / 2 * 2;  // even: outputs begin at multiples of 16 bytes
  p.plan = workspace.ptr<int32_t>();
  p.partial_max_sum = reinterpret_cast<float*>(workspace.ptr<unsigned char>() + plan_bytes);
  p.partial_out = p.partial_max_sum + p.max_partials * 2;
}

void paged_attention(const TensorRef& out, const py::object& lse_object, const TensorRef& query,
                     const TensorRef& key_cache, const TensorRef& value_cache, const TensorRef& block_tables,
                     const TensorRef& cu_seqlens_q, const TensorRef& seq_lens, double scale, int64_t window,
                     double softcap, const py::object& sinks_object, const py::object& k_scale_object,
                     const py::object& v_scale_object, std::optional<int64_t> max_query_len,
                     int64_t split_size, const py::object& workspace_object, bool causal) {
  const OptionalTensor lse(op, "lse", lse_object), sinks(op, "sinks", sinks_object),
      k_scale(op, "k_scale", k_scale_object), v_scale(op, "v_scale", v_scale_object),
      workspace(op, "workspace", workspace_object);
  DeviceCall call(op, "query", query);
  const PagedAttentionArgs args{out, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens,
                                lse, sinks, k_scale,   v_scale,     scale,        softcap,      window};
  check_paged_attention(op, args, {DType::f32, DType::f16, DType::bf16},
                        {DType::f32, DType::f16, DType::bf16, DType::f8e4m3});
  const bool exact = query.dtype == DType::f32;
  if (!exact) check_tensor_core(args);
  if (exact && key_cache.dtype == DType::f8e4m3)
    Arg(op, "key_cache", key_cache)
        .expected("dtype float32, float16 or bfloat16 for a query of float32", "float8_e4m3fn");
  if (split_size < kSplitUnit || split_size % kSplitUnit != 0 || split_size > INT32_MAX)
    fail_expected(op, "split_size", "a multiple of 64", std::to_string(split_size));
  if (max_query_len && *max_query_len < 0)
    fail_expected(op, "max_query_len", "a number >= 0 or None", std::to_string(*max_query_len));
  if (!causal && window > 0)
    fail_expected(op, "window", "0 where attention is not causal", std::to_string(window));

  call.reads("query", query).reads("key_cache", key_cache).reads("value_cache", value_cache);
  call.reads("block_tables", block_tables).reads("cu_seqlens_q", cu_seqlens_q).reads("seq_lens", seq_lens);
  call.writes("out", out);
  if (lse.given) call.writes("lse", lse.tensor);
  if (sinks.given) call.reads("sinks", sinks.tensor);
  if (k_scale.given) call.reads("k_scale", k_scale.tensor);
  if (v_scale.given) call.reads("v_scale", v_scale.tensor);
  cuda::PagedAttentionParams p = make_params(args);
  p.max_query_len = std::min(max_query_len.value_or(p.num_tokens), p.num_tokens);
  p.split_size = split_size;
  p.causal = causal;
  if (workspace.given && !exact) {
    const Arg arg(op, "workspace", workspace.tensor);
    arg.dtype({DType::u8}).ndim(1).contiguous().same_device("query", query);
    check_aligned(op, "workspace", workspace.tensor, 16);
    check_disjoint(op, "workspace", workspace.tensor, "out", out);
    check_disjoint(op, "workspace", workspace.tensor, "query", query);
    check_disjoint(op, "workspace", workspace.tensor, "key_cache", key_cache);
    check_disjoint(op, "workspace", workspace.tensor, "value_cache", value_cache);
    if (lse.given) check_disjoint(op, "workspace", workspace.tensor, "lse", lse.tensor);
    check_apart_from_lists(op, "workspace", workspace.tensor, args);
    call.writes("workspace", workspace.tensor);
    carve_workspace(p, workspace.tensor);
  }
  if (p.num_tokens == 0 || p.batch == 0) return;

  call.run([&](void* stream) {
    if (exact) return cuda::launch_paged_attention_exact(p, stream);
    const cuda::Error error = cuda::launch_paged_attention_decode(p, stream);
    const int64_t group = p.num_heads / p.num_kv_heads;
    if (error != cuda::kSuccess || p.max_query_len * group <= cuda::decode_rows(group)) return error;
    return cuda::launch_paged_attention_prefill(p, stream);
  });
}

}  // namespace

void bind_cuda_attention(py::module_& m) {
  m.def("paged_attention", &paged_attention, py::arg("out"), py::arg("lse"), py::arg("query"),
        py::arg("key_cache"), py::arg("value_cache"), py::arg("block_tables"), py::arg("cu_seqlens_q"),
        py::arg("seq_lens"), py::arg("scale"), py::arg("window") = 0, py::arg("softcap") = 0.0,
        py::arg("sinks") = py::none(), py::arg("k_scale") = py::none(), py::arg("v_scale") = py::none(),
        py::arg("max_query_len") = py::none(), py::arg("split_size") = 512, py::arg("workspace") = py::none(),
        py::arg("causal") = true);
}

}  // namespace inferx
