#include "cpu/rotary.h"

#include "bindings/bindings.h"
#include "bindings/checks/rotary.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* kOp = "rotary_embedding";

void rotary_embedding(const TensorRef& positions, const TensorRef& query, const py::object& key_object,
                      int64_t head_size, const TensorRef& cos_sin_cache, bool is_neox) {
  TensorRef key;
  const bool has_key = load_optional(kOp, "key", key_object, key);
  Arg(kOp, "positions", positions).on_cpu();
  Arg(kOp, "query", query).on_cpu();
  if (has_key) Arg(kOp, "key", key).on_cpu();
  Arg(kOp, "cos_sin_cache", cos_sin_cache).on_cpu();
  cpu::RotaryParams params{};
  const int64_t rows =
      fill_rotary(kOp, params, positions, query, has_key ? &key : nullptr, head_size, cos_sin_cache, is_neox);
  check_positions(kOp, positions, rows);
  py::gil_scoped_release nogil;
  cpu::rotary_embedding(params);
}

}  // namespace

void bind_rotary(py::module_& m) {
  m.def("rotary_embedding", &rotary_embedding, py::arg("positions"), py::arg("query"), py::arg("key"),
        py::arg("head_size"), py::arg("cos_sin_cache"), py::arg("is_neox") = true);
}

}  // namespace inferx
