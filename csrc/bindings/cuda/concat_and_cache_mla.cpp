#include "kernels/concat_and_cache_mla.h"

#include "bindings/checks/mla_attention.h"
#include "bindings/checks/reshape_and_cache.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void concat_and_cache_mla(const TensorRef& kv_c, const TensorRef& k_pe, const TensorRef& kv_cache,
                          const TensorRef& slot_mapping) {
  constexpr const char* op = "concat_and_cache_mla";
  DeviceCall call(op, "kv_c", kv_c);
  const MlaCacheWriteArgs args{kv_c, k_pe, kv_cache, slot_mapping};
  check_mla_cache_write(op, args);
  Arg(op, "kv_cache", kv_cache).same_dtype("kv_c", kv_c);
  check_slot_count(op, "kv_cache", args.num_slots());
  call.reads("kv_c", kv_c).reads("k_pe", k_pe).reads("slot_mapping", slot_mapping);
  call.writes("kv_cache", kv_cache);
  cuda::ConcatAndCacheMlaParams p{};
  p.input[0] = {kv_c.data, kv_c.stride(0), kv_c.size(1)};
  p.input[1] = {k_pe.data, k_pe.stride(0), k_pe.size(1)};
  p.kv_cache = kv_cache.data;
  p.cache_stride_block = kv_cache.stride(0);
  p.cache_stride_slot = kv_cache.stride(1);
  p.dtype = kv_c.dtype;
  p.slot_mapping = slot_mapping.ptr<int64_t>();
  p.num_tokens = kv_c.size(0);
  p.block_size = kv_cache.size(1);
  p.num_slots = args.num_slots();
  call.run([&](void* stream) { return cuda::launch_concat_and_cache_mla(p, stream); });
}

}  // namespace

void bind_cuda_concat_and_cache_mla(py::module_& m) {
  m.def("concat_and_cache_mla", &concat_and_cache_mla, py::arg("kv_c"), py::arg("k_pe"), py::arg("kv_cache"),
        py::arg("slot_mapping"));
}

}  // namespace inferx
