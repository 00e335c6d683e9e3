#include "kernels/merge_states.h"

#include "bindings/check.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void merge_attn_states(const TensorRef& out, const py::object& out_lse_object, const TensorRef& prefix,
                       const TensorRef& prefix_lse, const TensorRef& suffix, const TensorRef& suffix_lse) {
  constexpr const char* op = "merge_attn_states";
  Sym T{"T"}, Hq{"Hq"}, D{"D"};
  TensorRef out_lse;
  const bool has_lse = load_optional(op, "output_lse", out_lse_object, out_lse);
  DeviceCall call(op, "prefix_output", prefix);
  Arg(op, "prefix_output", prefix)
      .dtype({DType::f32, DType::f16, DType::bf16})
      .shape({T, Hq, D})
      .last_dim_contiguous();
  Arg(op, "suffix_output", suffix)
      .same_dtype("prefix_output", prefix)
      .shape({T, Hq, D})
      .last_dim_contiguous();
  Arg(op, "prefix_lse", prefix_lse).dtype({DType::f32}).shape({T, Hq});
  Arg(op, "suffix_lse", suffix_lse).dtype({DType::f32}).shape({T, Hq});
  Arg(op, "output", out)
      .same_dtype("prefix_output", prefix)
      .shape({T, Hq, D})
      .last_dim_contiguous()
      .not_self_overlapping();
  check_same_or_disjoint(op, "output", out, "prefix_output", prefix);
  check_same_or_disjoint(op, "output", out, "suffix_output", suffix);
  check_disjoint(op, "output", out, {{"prefix_lse", &prefix_lse}, {"suffix_lse", &suffix_lse}});
  call.reads("prefix_output", prefix).reads("prefix_lse", prefix_lse);
  call.reads("suffix_output", suffix).reads("suffix_lse", suffix_lse).writes("output", out);
  if (has_lse) {
    Arg(op, "output_lse", out_lse).dtype({DType::f32}).shape({T, Hq}).not_self_overlapping();
    check_same_or_disjoint(op, "output_lse", out_lse, "prefix_lse", prefix_lse);
    check_same_or_disjoint(op, "output_lse", out_lse, "suffix_lse", suffix_lse);
    check_disjoint(op, "output_lse", out_lse, "output", out);
    check_disjoint(op, "output_lse", out_lse, "prefix_output", prefix);
    check_disjoint(op, "output_lse", out_lse, "suffix_output", suffix);
    call.writes("output_lse", out_lse);
  }
  cuda::MergeStatesParams p{};
  p.prefix = prefix.data;
  p.suffix = suffix.data;
  p.prefix_lse = prefix_lse.ptr<float>();
  p.suffix_lse = suffix_lse.ptr<float>();
  p.out = out.data;
  p.dtype = prefix.dtype;
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
  call.run([&](void* stream) { return cuda::launch_merge_states(p, stream); });
}

}  // namespace

void bind_cuda_merge_states(py::module_& m) {
  m.def("merge_attn_states", &merge_attn_states, py::arg("output"), py::arg("output_lse"),
        py::arg("prefix_output"), py::arg("prefix_lse"), py::arg("suffix_output"), py::arg("suffix_lse"));
}

}  // namespace inferx
