#include "cpu/reshape_and_cache.h"

#include "bindings/bindings.h"
#include "bindings/checks/reshape_and_cache.h"

namespace py = pybind11;

namespace inferx {
namespace {

void reshape_and_cache_flash(const TensorRef& key, const TensorRef& value, const TensorRef& key_cache,
                             const TensorRef& value_cache, const TensorRef& slot_mapping,
                             const py::object& k_scale, const py::object& v_scale) {
  constexpr const char* op = "reshape_and_cache_flash";
  Arg(op, "key", key).on_cpu();
  const CacheScales scales(op, k_scale, v_scale);
  const CacheWriteArgs args = cache_write_args(key, value, key_cache, value_cache, slot_mapping, scales);
  check_cache_write(op, args);
  check_slots(op, args);
  const auto params = cache_write_params<cpu::ReshapeAndCacheParams>(args);
  py::gil_scoped_release nogil;
  cpu::reshape_and_cache_flash(params);
}

}  // namespace

void bind_reshape_and_cache(py::module_& m) {
  m.def("reshape_and_cache_flash", &reshape_and_cache_flash, py::arg("key"), py::arg("value"),
        py::arg("key_cache"), py::arg("value_cache"), py::arg("slot_mapping"),
        py::arg("k_scale") = py::none(), py::arg("v_scale") = py::none());
}

}  // namespace inferx
