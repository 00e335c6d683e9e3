#include "cpu/token_bitmask.h"

#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/checks/token_bitmask.h"

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* kOp = "apply_token_bitmask";

// Every named row exists, and one thread at a time works on it.
void check_rows(const TokenBitmaskParams& p) {
  if (!p.rows) return;
  std::vector<bool> taken(static_cast<size_t>(p.num_rows), false);
  for (int64_t m = 0; m < p.count; ++m) {
    const int64_t row = p.row_of(m);
    const auto where = [&] { return std::to_string(row) + " at index " + std::to_string(m); };
    if (row < 0 || row >= p.num_rows) {
      fail_expected(kOp, "rows", "rows of logits, 0 to R - 1 = " + std::to_string(p.num_rows - 1), where());
    }
    if (taken[static_cast<size_t>(row)]) fail_expected(kOp, "rows", "no row twice", where() + " again");
    taken[static_cast<size_t>(row)] = true;
  }
}

void apply_token_bitmask(const TensorRef& logits, const TensorRef& bitmask, const py::object& rows) {
  TensorRef selected;
  const bool some = load_optional(kOp, "rows", rows, selected);
  Arg(kOp, "logits", logits).on_cpu();
  const TokenBitmaskParams params = fill_token_bitmask(kOp, logits, bitmask, some ? &selected : nullptr);
  check_rows(params);
  py::gil_scoped_release nogil;
  cpu::apply_token_bitmask(params);
}

}  // namespace

void bind_token_bitmask(py::module_& m) {
  m.def("apply_token_bitmask", &apply_token_bitmask, py::arg("logits"), py::arg("bitmask"), py::arg("rows"));
}

}  // namespace inferx
