#include "kernels/rotary.h"

#include "bindings/checks/rotary.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void rotary_embedding(const TensorRef& positions, const TensorRef& query, const py::object& key_object,
                      int64_t head_size, const TensorRef& cos_sin_cache, bool is_neox) {
  constexpr const char* op = "rotary_embedding";
  TensorRef key;
  const bool has_key = load_optional(op, "key", key_object, key);
  DeviceCall call(op, "query", query);
  cuda::RotaryParams params{};
  params.cache_rows =
      fill_rotary(op, params, positions, query, has_key ? &key : nullptr, head_size, cos_sin_cache, is_neox);
  call.reads("positions", positions).reads("cos_sin_cache", cos_sin_cache).writes("query", query);
  if (has_key) call.writes("key", key);
  call.run([&](void* stream) { return cuda::launch_rotary_embedding(params, stream); });
}

}  // namespace

void bind_cuda_rotary(py::module_& m) {
  m.def("rotary_embedding", &rotary_embedding, py::arg("positions"), py::arg("query"), py::arg("key"),
        py::arg("head_size"), py::arg("cos_sin_cache"), py::arg("is_neox") = true);
}

}  // namespace inferx
