// The checks of copy_blocks, the same on every device.
#pragma once
#include "bindings/checks/blocks.h"

namespace inferx {

// One call's caches, and how each lies in memory.
struct CopyBlocksArgs {
  CopyBlocksArgs(const char* op, const pybind11::sequence& key_caches, const pybind11::sequence& value_caches,
                 const TensorRef& mapping);

  Caches caches;
  std::vector<BlockLayout> layouts;
  int64_t num_blocks = INT64_MAX;  // of the smallest cache
};

// The dimensions of one block, merged: a dense run first, then at most one dimension that steps over runs.
inline BlockLayout block_layout(const char* op, const Cache& cache) {
  const TensorRef& t = cache.tensor;
  const Arg arg(op, cache.name.c_str(), t);
  arg.min_ndim(2).last_dim_contiguous().not_self_overlapping();
  BlockSteps steps, unused;
  const BlockShape shape = block_shape(op, cache.name.c_str(), t, t.strides + 1, steps, unused);
  if (shape.outer > 1) {
    arg.expected("blocks that are one run of memory or evenly spaced runs", "shape " + shape_string(t));
  }
  return {t.ptr<char>(), t.size(0), steps.block, shape.inner, steps.inner, shape.run_bytes};
}

inline CopyBlocksArgs::CopyBlocksArgs(const char* op, const pybind11::sequence& key_caches,
                                      const pybind11::sequence& value_caches, const TensorRef& mapping) {
  append_caches(op, "key_caches", key_caches, caches);
  append_caches(op, "value_caches", value_caches, caches);
  // Latent attention has one cache a layer, and no values.
  if (value_caches.size() != 0 && key_caches.size() != value_caches.size()) {
    fail_expected(op, "value_caches", std::to_string(key_caches.size()) + " tensors as key_caches, or none",
                  std::to_string(value_caches.size()));
  }
  for (const auto& cache : caches) {
    Arg(op, cache->name.c_str(), cache->tensor).same_device("block_mapping", mapping);
    layouts.push_back(block_layout(op, *cache));
    num_blocks = std::min(num_blocks, layouts.back().num_blocks);
  }
  if (caches.empty()) num_blocks = 0;
  check_mapping_shape(op, mapping);
  check_written_caches(op, caches, "block_mapping", mapping);
}

}  // namespace inferx
