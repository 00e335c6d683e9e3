#include "bindings/checks/mla_attention.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>

#include "bindings/checks/alignment.h"
#include "bindings/cuda/attention_params.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "kernels/mla_attention/params.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* op = "mla_attention";

cuda::MlaAttentionParams make_params(const MlaAttentionArgs& args) {
  cuda::MlaAttentionParams p{};
  fill_device_attention_params(p, args, args.kv_cache);
  p.num_kv_heads = 1;
  p.value_dim = args.value_dim;
  return p;
}

// What the tensor core kernel asks for beyond check_mla_attention.
void check_tensor_core(const MlaAttentionArgs& args) {
  if (args.block_size() % 8 != 0) {
    Arg(op, "kv_cache", args.kv_cache)
        .expected("a block size that is a multiple of 8", std::to_string(args.block_size()));
  }
  check_aligned(op, "query", args.query, 16);
  check_aligned(op, "out", args.out, 16);
  check_aligned(op, "kv_cache", args.kv_cache, 16);
}

void check_workspace(const MlaAttentionArgs& args, const TensorRef& workspace) {
  Arg(op, "workspace", workspace).same_device("query", args.query).dtype({DType::u8}).ndim(1).contiguous();
  check_aligned(op, "workspace", workspace, 16);
  check_disjoint(op, "workspace", workspace,
                 {{"out", &args.out},
                  {"lse", args.lse.if_given()},
                  {"query", &args.query},
                  {"kv_cache", &args.kv_cache},
                  {"block_tables", &args.block_tables},
                  {"cu_seqlens_q", &args.cu_seqlens_q},
                  {"seq_lens", &args.seq_lens}});
}

// The scratch of splits lies in one buffer: the plan, maxima and sums, partial outputs.
void carve_workspace(cuda::MlaAttentionParams& p, const TensorRef& workspace) {
  const int64_t plan_bytes = (p.batch * 4 + 15) / 16 * 16, row_bytes = (2 + p.value_dim) * 4;
  const int64_t rows = (workspace.numel() - plan_bytes) / row_bytes;
  if (rows <= 0) return;
  p.max_partials =
      std::min<int64_t>(rows, INT32_MAX) / 2 * 2;  // even: outputs begin at multiples of 16 bytes
  p.plan = workspace.ptr<int32_t>();
  p.partial_max_sum = reinterpret_cast<float*>(workspace.ptr<unsigned char>() + plan_bytes);
  p.partial_out = p.partial_max_sum + p.max_partials * 2;
}

void mla_attention(const TensorRef& out, const py::object& lse_object, const TensorRef& query,
                   const TensorRef& kv_cache, const TensorRef& block_tables, const TensorRef& cu_seqlens_q,
                   const TensorRef& seq_lens, double scale, int64_t value_dim,
                   std::optional<int64_t> max_query_len, const py::object& workspace_object) {
  const OptionalTensor lse(op, "lse", lse_object), workspace(op, "workspace", workspace_object);
  DeviceCall call(op, "query", query);
  const MlaAttentionArgs args{out,      query, kv_cache, block_tables, cu_seqlens_q,
                              seq_lens, lse,   scale,    value_dim};
  check_mla_attention(op, args, {DType::f32, DType::f16, DType::bf16}, {DType::f32, DType::f16, DType::bf16});
  if (query.dtype != DType::f32 && kv_cache.dtype != query.dtype) {
    Arg(op, "kv_cache", kv_cache)
        .expected("dtype " + std::string(dtype_name(query.dtype)) + " as query", dtype_name(kv_cache.dtype));
  }
  const bool tensor_cores = cuda::has_mla_tensor_cores(query.dtype, args.key_dim(), value_dim);
  if (tensor_cores) check_tensor_core(args);
  if (workspace.given) check_workspace(args, workspace.tensor);
  if (max_query_len && *max_query_len < 0)
    fail_expected(op, "max_query_len", "a number >= 0 or None", std::to_string(*max_query_len));

  call.reads("query", query).reads("kv_cache", kv_cache).reads("block_tables", block_tables);
  call.reads("cu_seqlens_q", cu_seqlens_q).reads("seq_lens", seq_lens).writes("out", out);
  if (lse.given) call.writes("lse", lse.tensor);
  cuda::MlaAttentionParams p = make_params(args);
  p.max_query_len = std::min(max_query_len.value_or(p.num_tokens), p.num_tokens);
  if (workspace.given && tensor_cores) {
    call.writes("workspace", workspace.tensor);
    carve_workspace(p, workspace.tensor);
  }
  if (p.num_tokens == 0 || p.batch == 0) return;

  call.run([&](void* stream) {
    return tensor_cores ? cuda::launch_mla_attention_mma(p, stream)
                        : cuda::launch_mla_attention_exact(p, stream);
  });
}

}  // namespace

void bind_cuda_mla_attention(py::module_& m) {
  m.def("mla_attention", &mla_attention, py::arg("out"), py::arg("lse"), py::arg("query"),
        py::arg("kv_cache"), py::arg("block_tables"), py::arg("cu_seqlens_q"), py::arg("seq_lens"),
        py::arg("scale"), py::arg("value_dim"), py::arg("max_query_len") = py::none(),
        py::arg("workspace") = py::none());
}

}  // namespace inferx
