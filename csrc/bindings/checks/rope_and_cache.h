// The checks of rope_and_cache, the same on every device.
#pragma once
#include <algorithm>

#include "bindings/checks/reshape_and_cache.h"
#include "bindings/checks/rotary.h"

namespace inferx {

// key or value as [T, heads, head_dim], from that or from [T, heads * head_dim].  `view` holds the result.
inline const TensorRef& with_heads(const char* op, const TensorRef& t, const TensorRef& cache,
                                   TensorRef& view) {
  Arg(op, "key_cache", cache).ndim(4);
  const int64_t heads = cache.size(2), dim = cache.size(3);
  if (t.ndim != 2 || t.size(1) != heads * dim) return t;  // the checks that follow say what is wrong
  view.data = t.data;
  view.ndim = 3;
  view.dtype = t.dtype;
  view.device_type = t.device_type;
  view.device_id = t.device_id;
  const int64_t layout[] = {t.size(0), heads, dim, t.stride(0), dim, 1};
  std::copy(layout, layout + 6, view.shape_and_strides);
  view.shape = view.shape_and_strides;
  view.strides = view.shape_and_strides + 3;
  return view;
}

// One call's tensors, checked; values of positions and slots are left to the caller.
struct RopeAndCacheArgs {
  RopeAndCacheArgs(const char* op, const TensorRef& positions, const TensorRef& query, const TensorRef& key,
                   const TensorRef& value, const TensorRef& cos_sin_cache, const TensorRef& key_cache,
                   const TensorRef& value_cache, const TensorRef& slot_mapping,
                   const pybind11::object& k_scale, const pybind11::object& v_scale)
      : scales(op, k_scale, v_scale),
        write(cache_write_args(with_heads(op, key, key_cache, key_view),
                               with_heads(op, value, key_cache, value_view), key_cache, value_cache,
                               slot_mapping, scales)) {
    check_cache_write(op, write);
    Arg(op, "positions", positions).same_device("key", key);
    Arg(op, "query", query).same_device("key", key);
    Arg(op, "cos_sin_cache", cos_sin_cache).same_device("key", key);
    const NamedTensor k_input{"k_scale", write.k_scale}, v_input{"v_scale", write.v_scale};
    for (const NamedTensor& out : {NamedTensor{"query", &query}, {"key", &key}}) {
      check_disjoint(op, out.name, *out.tensor,
                     {{"value", &value}, {"slot_mapping", &slot_mapping}, k_input, v_input});
    }
    for (const NamedTensor& out : {NamedTensor{"key_cache", &key_cache}, {"value_cache", &value_cache}}) {
      check_disjoint(op, out.name, *out.tensor,
                     {{"query", &query}, {"positions", &positions}, {"cos_sin_cache", &cos_sin_cache}});
    }
  }

  CacheScales scales;
  TensorRef key_view, value_view;
  CacheWriteArgs write;
};

}  // namespace inferx
