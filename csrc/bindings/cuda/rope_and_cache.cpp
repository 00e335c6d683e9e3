#include "kernels/rope_and_cache.h"

#include "bindings/checks/rope_and_cache.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void rope_and_cache(const TensorRef& positions, const TensorRef& query, const TensorRef& key,
                    const TensorRef& value, const TensorRef& cos_sin_cache, bool is_neox,
                    const TensorRef& key_cache, const TensorRef& value_cache, const TensorRef& slot_mapping,
                    const py::object& k_scale, const py::object& v_scale) {
  constexpr const char* op = "rope_and_cache";
  DeviceCall call(op, "key", key);
  const RopeAndCacheArgs args(op, positions, query, key, value, cos_sin_cache, key_cache, value_cache,
                              slot_mapping, k_scale, v_scale);
  check_slot_count(op, args.write);
  cuda::RopeAndCacheParams params{};
  params.rotary.cache_rows =
      fill_rotary(op, params.rotary, positions, query, &key, key_cache.size(3), cos_sin_cache, is_neox);
  params.store = cache_write_params<cuda::ReshapeAndCacheParams>(args.write);
  call.reads("positions", positions).reads("cos_sin_cache", cos_sin_cache).reads("value", value);
  call.reads("slot_mapping", slot_mapping).writes("query", query).writes("key", key);
  call.writes("key_cache", key_cache).writes("value_cache", value_cache);
  if (args.write.k_scale) call.reads("k_scale", *args.write.k_scale);
  if (args.write.v_scale) call.reads("v_scale", *args.write.v_scale);
  call.run([&](void* stream) { return cuda::launch_rope_and_cache(params, stream); });
}

}  // namespace

void bind_cuda_rope_and_cache(py::module_& m) {
  m.def("rope_and_cache", &rope_and_cache, py::arg("positions"), py::arg("query"), py::arg("key"),
        py::arg("value"), py::arg("cos_sin_cache"), py::arg("is_neox"), py::arg("key_cache"),
        py::arg("value_cache"), py::arg("slot_mapping"), py::arg("k_scale") = py::none(),
        py::arg("v_scale") = py::none());
}

}  // namespace inferx
