#include "cpu/moe_sum.h"

#include "bindings/bindings.h"
#include "bindings/checks/moe_sum.h"

namespace py = pybind11;

namespace inferx {
namespace {

void moe_sum(const TensorRef& out, const TensorRef& x) {
  constexpr const char* op = "moe_sum";
  Arg(op, "input", x).on_cpu();
  check_moe_sum(op, out, x);

  const cpu::MoeSumParams params{out.data,  x.data,        x.dtype,     x.size(0),  x.size(1),
                                 x.size(2), out.stride(0), x.stride(0), x.stride(1)};
  py::gil_scoped_release nogil;
  cpu::moe_sum(params);
}

}  // namespace

void bind_moe_sum(py::module_& m) { m.def("moe_sum", &moe_sum, py::arg("out"), py::arg("input")); }

}  // namespace inferx
