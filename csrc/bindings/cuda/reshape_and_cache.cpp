#include "kernels/reshape_and_cache.h"

#include "bindings/checks/reshape_and_cache.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void reshape_and_cache_flash(const TensorRef& key, const TensorRef& value, const TensorRef& key_cache,
                             const TensorRef& value_cache, const TensorRef& slot_mapping,
                             const py::object& k_scale, const py::object& v_scale) {
  constexpr const char* op = "reshape_and_cache_flash";
  DeviceCall call(op, "key", key);
  const CacheScales scales(op, k_scale, v_scale);
  const CacheWriteArgs args = cache_write_args(key, value, key_cache, value_cache, slot_mapping, scales);
  check_cache_write(op, args);
  check_slot_count(op, args);
  call.reads("key", key).reads("value", value).reads("slot_mapping", slot_mapping);
  call.writes("key_cache", key_cache).writes("value_cache", value_cache);
  if (args.k_scale) call.reads("k_scale", *args.k_scale);
  if (args.v_scale) call.reads("v_scale", *args.v_scale);
  const auto params = cache_write_params<cuda::ReshapeAndCacheParams>(args);
  call.run([&](void* stream) { return cuda::launch_reshape_and_cache(params, stream); });
}

}  // namespace

void bind_cuda_reshape_and_cache(py::module_& m) {
  m.def("reshape_and_cache_flash", &reshape_and_cache_flash, py::arg("key"), py::arg("value"),
        py::arg("key_cache"), py::arg("value_cache"), py::arg("slot_mapping"),
        py::arg("k_scale") = py::none(), py::arg("v_scale") = py::none());
}

}  // namespace inferx
