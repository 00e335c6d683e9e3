// The checks of the ops that write keys and values into the paged cache, the same on every device.
#pragma once
#include <string>
#include <utility>

#include "bindings/check.h"

namespace inferx {

// The tensors of one call; scales where they are given.
struct CacheWriteArgs {
  const TensorRef &key, &value, &key_cache, &value_cache, &slot_mapping;
  const TensorRef *k_scale = nullptr, *v_scale = nullptr;

  int64_t num_slots() const { return key_cache.size(0) * key_cache.size(1); }
};

// k_scale and v_scale as Python gives them: a tensor or None.
struct CacheScales {
  CacheScales(const char* op, const pybind11::object& k_object, const pybind11::object& v_object)
      : has_k(load_optional(op, "k_scale", k_object, k)), has_v(load_optional(op, "v_scale", v_object, v)) {}
  TensorRef k, v;
  bool has_k, has_v;
};

inline CacheWriteArgs cache_write_args(const TensorRef& key, const TensorRef& value,
                                       const TensorRef& key_cache, const TensorRef& value_cache,
                                       const TensorRef& slot_mapping, const CacheScales& scales) {
  return {key,
          value,
          key_cache,
          value_cache,
          slot_mapping,
          scales.has_k ? &scales.k : nullptr,
          scales.has_v ? &scales.v : nullptr};
}

inline void check_cache_scale(const char* op, const char* name, const TensorRef* scale,
                              const CacheWriteArgs& args) {
  if (scale == nullptr) return;
  const Arg arg(op, name, *scale);
  if (args.key_cache.dtype != DType::f8e4m3) {
    arg.expected("None for a cache of " + std::string(dtype_name(args.key_cache.dtype)), "a tensor");
  }
  const int64_t heads = args.key_cache.size(2);
  arg.dtype({DType::f32}).contiguous().same_device("key", args.key);
  if (scale->numel() == 1 || (scale->ndim == 1 && scale->size(0) == heads)) return;
  arg.expected("one element or shape [num_kv_heads=" + std::to_string(heads) + "]", shape_string(*scale));
}

// All but the values in slot_mapping, which only the CPU can look at.
inline void check_cache_write(const char* op, const CacheWriteArgs& args) {
  const auto& [key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale] = args;
  Sym T{"T"};
  Arg(op, "key_cache", key_cache)
      .same_device("key", key)
      .ndim(4)
      .dtype({DType::f32, DType::f16, DType::bf16, DType::f8e4m3})
      .last_dim_contiguous()
      .not_self_overlapping();
  if (key_cache.size(1) < 1) Arg(op, "key_cache", key_cache).expected("a block size of at least 1", "0");
  Arg(op, "value_cache", value_cache)
      .same_device("key", key)
      .same_shape("key_cache", key_cache)
      .same_dtype("key_cache", key_cache)
      .last_dim_contiguous()
      .not_self_overlapping();
  Arg(op, "key", key)
      .dtype({DType::f32, DType::f16, DType::bf16})
      .shape({T, key_cache.size(2), key_cache.size(3)})
      .last_dim_contiguous();
  Arg(op, "value", value)
      .same_device("key", key)
      .same_dtype("key", key)
      .same_shape("key", key)
      .last_dim_contiguous();
  Arg(op, "slot_mapping", slot_mapping).same_device("key", key).dtype({DType::i64}).shape({T}).contiguous();
  check_cache_scale(op, "k_scale", k_scale, args);
  check_cache_scale(op, "v_scale", v_scale, args);
  check_disjoint(op, "value_cache", value_cache, "key_cache", key_cache);
  for (const NamedTensor& out : {NamedTensor{"key_cache", &key_cache}, {"value_cache", &value_cache}}) {
    check_disjoint(op, out.name, *out.tensor,
                   {{"key", &key},
                    {"value", &value},
                    {"slot_mapping", &slot_mapping},
                    {"k_scale", k_scale},
                    {"v_scale", v_scale}});
  }
}

// For slots that lie on the CPU.
inline void check_slots(const char* op, const TensorRef& slot_mapping, int64_t slots) {
  const int64_t* slot = slot_mapping.ptr<int64_t>();
  for (int64_t t = 0; t < slot_mapping.size(0); ++t) {
    if (slot[t] >= -1 && slot[t] < slots) continue;
    fail_expected(op, "slot_mapping", "slots from 0 to " + std::to_string(slots - 1) + ", or -1 to skip",
                  std::to_string(slot[t]) + " at [" + std::to_string(t) + "]");
  }
}

inline void check_slots(const char* op, const CacheWriteArgs& args) {
  check_slots(op, args.slot_mapping, args.num_slots());
}

// The device's kernels count slots in 31 bits.
inline void check_slot_count(const char* op, const char* cache_name, int64_t slots) {
  if (slots <= INT32_MAX) return;
  fail_expected(op, cache_name, "at most 2^31 - 1 slots", std::to_string(slots));
}
inline void check_slot_count(const char* op, const CacheWriteArgs& args) {
  check_slot_count(op, "key_cache", args.num_slots());
}

// A row of inputs or caches for the params structs of csrc/cpu and csrc/kernels.
template <class Rows>
Rows token_rows(const TensorRef& t) {
  return {t.data, t.stride(0), t.stride(1)};
}
template <class Rows>
Rows cache_rows(const TensorRef& t) {
  return {t.data, t.stride(0), t.stride(1), t.stride(2)};
}
template <class Scale>
Scale cache_scale(const TensorRef* scale) {
  if (scale == nullptr) return {nullptr, 0};
  return {scale->ptr<float>(), scale->numel() == 1 ? 0 : 1};
}

// Params of csrc/cpu or csrc/kernels: both have these members.
template <class Params>
Params cache_write_params(const CacheWriteArgs& args) {
  Params p{};
  p.input[0] = token_rows<std::decay_t<decltype(p.input[0])>>(args.key);
  p.input[1] = token_rows<std::decay_t<decltype(p.input[1])>>(args.value);
  p.cache[0] = cache_rows<std::decay_t<decltype(p.cache[0])>>(args.key_cache);
  p.cache[1] = cache_rows<std::decay_t<decltype(p.cache[1])>>(args.value_cache);
  p.scale[0] = cache_scale<std::decay_t<decltype(p.scale[0])>>(args.k_scale);
  p.scale[1] = cache_scale<std::decay_t<decltype(p.scale[1])>>(args.v_scale);
  p.input_dtype = args.key.dtype;
  p.cache_dtype = args.key_cache.dtype;
  p.slot_mapping = args.slot_mapping.ptr<int64_t>();
  p.num_tokens = args.key.size(0);
  p.num_heads = args.key.size(1);
  p.head_dim = args.key.size(2);
  p.block_size = args.key_cache.size(1);
  p.num_slots = args.num_slots();
  return p;
}

}  // namespace inferx
