#include "cpu/linear.h"

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/packed_weight.h"
#include "bindings/row_args.h"
#include "cpu/embedding.h"
#include "cpu/linear_int8.h"
#include "cpu/parallel.h"
#include "cpu/scratch.h"

namespace py = pybind11;

namespace inferx {
namespace {

int64_t packed_nbytes(const std::string& dtype, int64_t n, int64_t k) {
  return describe_weight("pack_weight", dtype, n, k).nbytes();
}

WeightHandle pack_weight(const py::object& buffer, const TensorRef& data, const std::string& dtype, int64_t n,
                         int64_t k, bool halves_alternate) {
  constexpr const char* op = "pack_weight";
  WeightHandle handle{describe_weight(op, dtype, n, k), buffer};
  cpu::PackedWeight& weight = handle.weight;
  if (halves_alternate && n % (2 * cpu::kTileColumns) != 0) {
    throw py::value_error("pack_weight: halves_alternate: expected a number of rows that is a multiple of " +
                          std::to_string(2 * cpu::kTileColumns) + ", got " + std::to_string(n));
  }
  weight.halves_alternate = halves_alternate;
  const int64_t row_bytes = check_source(op, data, weight);
  TensorRef memory;
  load_buffer(op, buffer, weight.nbytes(), memory);
  check_disjoint(op, "buffer", memory, "data", data);
  weight.data = memory.ptr<const uint8_t>();

  py::gil_scoped_release nogil;
  cpu::pack_weight(data.ptr<const uint8_t>(), row_bytes, weight, memory.ptr<uint8_t>());
  return handle;
}

// The distance of rows that lie evenly in memory.
int64_t even_row_stride(const char* op, const char* name, const TensorRef& tensor) {
  const Rows rows = rows_of(tensor);
  if (rows.ndim > 1 && rows.count > 0) {
    Arg(op, name, tensor).expected("rows at one distance in memory", "dimensions that step unevenly");
  }
  return rows.ndim == 0 ? tensor.size(-1) : rows.stride[0];
}

void check_out(const char* op, const TensorRef& out, Sym& columns) {
  Arg(op, "out", out).dtype({DType::f32}).last_dim(columns).last_dim_contiguous().on_cpu();
  Arg(op, "out", out).not_self_overlapping();
}

// The product with x as 8-bit codes, which are made here.
void quantized_linear(const cpu::LinearParams& p) {
  const int64_t nbytes = cpu::QuantizedRows::nbytes(p.m, p.weight.k);
  const cpu::QuantizedRows x(cpu::thread_scratch().floats(nbytes / 4), p.m, p.weight.k);
  cpu::run_with_team([&] {
    cpu::quantize_rows(p.x, p.x_stride, x);
    cpu::linear_int8({x, p.weight, p.bias, p.out, p.out_stride});
  });
  cpu::thread_scratch().trim();
}

void linear(const TensorRef& out, const TensorRef& x, const WeightHandle& w, const py::object& bias,
            bool int8) {
  constexpr const char* op = "linear";
  Sym n{"N", w.weight.n}, k{"K", w.weight.k};
  Arg(op, "x", x).dtype({DType::f32}).last_dim(k).last_dim_contiguous().on_cpu();
  check_out(op, out, n);
  const bool same_rows = out.ndim == x.ndim && std::equal(x.shape, x.shape + x.ndim - 1, out.shape);
  if (!same_rows) {
    Arg(op, "out", out).expected("the leading dimensions of x " + shape_string(x), shape_string(out));
  }
  check_disjoint(op, "out", out, "x", x);
  const float* bias_data = nullptr;
  if (!bias.is_none()) {
    TensorRef b;
    if (!load_tensor(bias.ptr(), b)) throw py::type_error("linear: bias: expected a torch.Tensor or None");
    Arg(op, "bias", b).dtype({DType::f32}).shape({n}).contiguous().on_cpu();
    check_disjoint(op, "out", out, "bias", b);
    bias_data = b.ptr<const float>();
  }
  const int64_t rows = x.numel() / k.value;
  const cpu::LinearParams params{x.ptr<const float>(),
                                 rows,
                                 even_row_stride(op, "x", x),
                                 w.weight,
                                 bias_data,
                                 out.ptr<float>(),
                                 even_row_stride(op, "out", out)};
  if (int8 && !cpu::has_int8_kernel(w.weight.format)) {
    throw py::value_error(std::string("linear: int8: expected a block-quantised weight, got ") +
                          cpu::traits_of(w.weight.format).name);
  }
  py::gil_scoped_release nogil;
  if (int8) {
    quantized_linear(params);
  } else {
    cpu::linear(params);
  }
}

template <class Id>
void embedding_of(const TensorRef& out, const TensorRef& ids, const cpu::PackedWeight& table) {
  const Id* id = ids.ptr<const Id>();
  const int64_t count = ids.size(0);
  for (int64_t t = 0; t < count; ++t) {
    if (id[t] < 0 || id[t] >= table.n) {
      throw py::index_error("embedding: ids: expected 0 <= id < " + std::to_string(table.n) + ", got " +
                            std::to_string(id[t]) + " at index " + std::to_string(t));
    }
  }
  py::gil_scoped_release nogil;
  cpu::embedding(table, id, count, out.ptr<float>(), out.stride(0));
}

void embedding(const TensorRef& out, const TensorRef& ids, const WeightHandle& w) {
  constexpr const char* op = "embedding";
  Sym tokens{"T"}, k{"K", w.weight.k};
  Arg(op, "ids", ids).dtype({DType::i64, DType::i32}).shape({tokens}).contiguous().on_cpu();
  check_out(op, out, k);
  Arg(op, "out", out).shape({tokens, k});
  check_disjoint(op, "out", out, "ids", ids);
  if (ids.dtype == DType::i64) {
    embedding_of<int64_t>(out, ids, w.weight);
  } else {
    embedding_of<int32_t>(out, ids, w.weight);
  }
}

void dequantize(const TensorRef& out, const WeightHandle& w) {
  Arg("dequantize", "out", out).dtype({DType::f32}).shape({w.weight.n, w.weight.k}).contiguous().on_cpu();
  py::gil_scoped_release nogil;
  cpu::dequantize(w.weight, out.ptr<float>(), w.weight.k);
}

}  // namespace

void bind_linear(py::module_& m) {
  py::class_<WeightHandle>(m, "WeightHandle")
      .def_property_readonly("shape",
                             [](const WeightHandle& w) { return py::make_tuple(w.weight.n, w.weight.k); })
      .def_property_readonly("dtype",
                             [](const WeightHandle& w) { return cpu::traits_of(w.weight.format).name; })
      .def_property_readonly("nbytes", [](const WeightHandle& w) { return w.weight.nbytes(); });
  m.def("packed_nbytes", &packed_nbytes, py::arg("dtype"), py::arg("n"), py::arg("k"));
  m.def("pack_weight", &pack_weight, py::arg("buffer"), py::arg("data"), py::arg("dtype"), py::arg("n"),
        py::arg("k"), py::arg("halves_alternate") = false);
  m.def("linear", &linear, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("bias"),
        py::arg("int8") = false);
  m.def("embedding", &embedding, py::arg("out"), py::arg("ids"), py::arg("weight"));
  m.def("dequantize", &dequantize, py::arg("out"), py::arg("weight"));
}

}  // namespace inferx
