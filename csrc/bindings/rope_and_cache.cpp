#include "bindings/checks/rope_and_cache.h"

#include "bindings/bindings.h"
#include "cpu/reshape_and_cache.h"
#include "cpu/rotary.h"

namespace py = pybind11;

namespace inferx {
namespace {

// The two ops one after the other, once everything is known to be right.
void rope_and_cache(const TensorRef& positions, const TensorRef& query, const TensorRef& key,
                    const TensorRef& value, const TensorRef& cos_sin_cache, bool is_neox,
                    const TensorRef& key_cache, const TensorRef& value_cache, const TensorRef& slot_mapping,
                    const py::object& k_scale, const py::object& v_scale) {
  constexpr const char* op = "rope_and_cache";
  Arg(op, "key", key).on_cpu();
  const RopeAndCacheArgs args(op, positions, query, key, value, cos_sin_cache, key_cache, value_cache,
                              slot_mapping, k_scale, v_scale);
  cpu::RotaryParams rotary{};
  const int64_t rows =
      fill_rotary(op, rotary, positions, query, &key, key_cache.size(3), cos_sin_cache, is_neox);
  check_positions(op, positions, rows);
  check_slots(op, args.write);
  const auto store = cache_write_params<cpu::ReshapeAndCacheParams>(args.write);
  py::gil_scoped_release nogil;
  cpu::rotary_embedding(rotary);
  cpu::reshape_and_cache_flash(store);
}

}  // namespace

void bind_rope_and_cache(py::module_& m) {
  m.def("rope_and_cache", &rope_and_cache, py::arg("positions"), py::arg("query"), py::arg("key"),
        py::arg("value"), py::arg("cos_sin_cache"), py::arg("is_neox"), py::arg("key_cache"),
        py::arg("value_cache"), py::arg("slot_mapping"), py::arg("k_scale") = py::none(),
        py::arg("v_scale") = py::none());
}

}  // namespace inferx
