#include "kernels/embedding.h"

#include "bindings/check.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void embedding(const TensorRef& out, const TensorRef& ids, const TensorRef& table) {
  constexpr const char* op = "embedding";
  Sym tokens{"T"}, rows{"N"}, columns{"K"};
  DeviceCall call(op, "table", table);
  Arg(op, "ids", ids).dtype({DType::i64, DType::i32}).shape({tokens}).contiguous();
  Arg(op, "table", table)
      .dtype({DType::f32, DType::f16, DType::bf16})
      .shape({rows, columns})
      .last_dim_contiguous();
  Arg(op, "out", out).same_dtype("table", table).shape({tokens, columns}).last_dim_contiguous();
  Arg(op, "out", out).not_self_overlapping();
  check_disjoint(op, "out", out, "table", table);
  check_disjoint(op, "out", out, "ids", ids);
  call.reads("ids", ids).reads("table", table).writes("out", out);

  const int64_t item = static_cast<int64_t>(dtype_size(table.dtype));
  const cuda::EmbeddingParams params{out.ptr<char>(),
                                     table.ptr<const char>(),
                                     ids.data,
                                     ids.dtype == DType::i64,
                                     tokens.value,
                                     rows.value,
                                     columns.value * item,
                                     out.stride(0) * item,
                                     table.stride(0) * item};
  call.run([&](void* stream) { return cuda::launch_embedding(params, stream); });
}

}  // namespace

void bind_cuda_embedding(py::module_& m) {
  m.def("embedding", &embedding, py::arg("out"), py::arg("ids"), py::arg("table"));
}

}  // namespace inferx
