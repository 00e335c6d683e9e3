// The checks of the ops that move whole blocks of the KV cache, the same on every device.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/check.h"
#include "block_layout.h"

namespace inferx {

// A cache tensor and the name that errors give it, "key_caches[3]".
struct Cache {
  std::string name;
  TensorRef tensor;
};
using Caches = std::vector<std::unique_ptr<Cache>>;

inline void append_caches(const char* op, const char* argument, const pybind11::sequence& tensors,
                          Caches& caches) {
  size_t index = 0;
  for (pybind11::handle item : tensors) {
    auto cache = std::make_unique<Cache>();
    cache->name = std::string(argument) + "[" + std::to_string(index++) + "]";
    if (!load_tensor(item.ptr(), cache->tensor)) {
      throw pybind11::type_error(std::string(op) + ": " + cache->name + ": expected a torch.Tensor, got " +
                                 pybind11::str(pybind11::type::of(item)).cast<std::string>());
    }
    if (cache->tensor.dtype == DType::other) {
      Arg(op, cache->name.c_str(), cache->tensor).expected("a dtype inferx knows", "another");
    }
    caches.push_back(std::move(cache));
  }
}

// Caches that are written share nothing with each other or with another input.
inline void check_written_caches(const char* op, const Caches& caches, const char* input_name,
                                 const TensorRef& input) {
  std::vector<NamedTensor> written;
  for (const auto& cache : caches) {
    written.push_back({cache->name.c_str(), &cache->tensor});
    check_disjoint(op, cache->name.c_str(), cache->tensor, input_name, input);
  }
  check_all_disjoint(op, written);
}

// A dimension of a block: its size, and its strides in the two tensors that hold it.
struct BlockDim {
  int64_t stride, other_stride, size;
};

// The dimensions of one block, merged where both tensors allow: a run first, then at most two dimensions that
// step over runs.  False where there are more.
inline bool merge_block_dims(std::vector<BlockDim> dims, int64_t item, BlockShape& shape, BlockSteps& steps,
                             BlockSteps& other_steps) {
  shape = {1, 1, item};
  std::sort(dims.begin(), dims.end(), [](const BlockDim& a, const BlockDim& b) {
    return std::pair(a.stride, a.other_stride) < std::pair(b.stride, b.other_stride);
  });
  for (const BlockDim& dim : dims) {
    if (dim.size == 1) continue;
    const int64_t stride = dim.stride * item, other = dim.other_stride * item;
    if (shape.inner == 1 && stride == shape.run_bytes && other == shape.run_bytes) {
      shape.run_bytes *= dim.size;
    } else if (shape.inner == 1) {
      shape.inner = dim.size;
      steps.inner = stride;
      other_steps.inner = other;
    } else if (shape.outer == 1 && stride == shape.inner * steps.inner &&
               other == shape.inner * other_steps.inner) {
      shape.inner *= dim.size;
    } else if (shape.outer == 1) {
      shape.outer = dim.size;
      steps.outer = stride;
      other_steps.outer = other;
    } else if (stride == shape.outer * steps.outer && other == shape.outer * other_steps.outer) {
      shape.outer *= dim.size;
    } else {
      return false;
    }
  }
  return true;
}

// How `t` and another tensor with `other_strides` for the dimensions after the first hold the same block.
inline BlockShape block_shape(const char* op, const char* name, const TensorRef& t,
                              const int64_t* other_strides, BlockSteps& steps, BlockSteps& other_steps) {
  std::vector<BlockDim> dims;
  int64_t elements = 1;
  for (int i = 1; i < t.ndim; ++i) {
    elements *= t.shape[i];
    dims.push_back({t.strides[i], other_strides[i - 1], t.shape[i]});
  }
  const int64_t item = static_cast<int64_t>(dtype_size(t.dtype));
  steps = {t.stride(0) * item, 0, 0};
  other_steps = {0, 0, 0};
  BlockShape shape;
  if (elements == 0) return {1, 1, 0};
  if (!merge_block_dims(dims, item, shape, steps, other_steps)) {
    fail_expected(op, name, "blocks of at most three dimensions that cannot be merged",
                  "shape " + shape_string(t));
  }
  return shape;
}

inline std::string indexed(const char* name, int64_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

inline void check_block(const char* op, const std::string& name, int64_t block, int64_t num_blocks) {
  if (block >= 0 && block < num_blocks) return;
  throw pybind11::index_error(std::string(op) + ": " + name + ": expected 0 <= block < " +
                              std::to_string(num_blocks) + ", got " + std::to_string(block));
}

// Pairs of (source, destination) on the CPU.  They are copied in any order, so a destination occurs once, and
// within one tensor it is no source.
inline void check_pairs(const char* op, const TensorRef& mapping, int64_t num_sources,
                        int64_t num_destinations, bool same_tensor) {
  const int64_t* pairs = mapping.ptr<int64_t>();
  const int64_t num_pairs = mapping.size(0);
  std::unordered_set<int64_t> sources, destinations;
  for (int64_t i = 0; i < num_pairs; ++i) {
    const std::string name = indexed("block_mapping", i);
    check_block(op, name, pairs[2 * i], num_sources);
    check_block(op, name, pairs[2 * i + 1], num_destinations);
    sources.insert(pairs[2 * i]);
    if (!destinations.insert(pairs[2 * i + 1]).second) {
      fail_expected(op, name.c_str(), "each destination once", std::to_string(pairs[2 * i + 1]) + " again");
    }
  }
  for (int64_t i = 0; same_tensor && i < num_pairs; ++i) {
    if (!sources.count(pairs[2 * i + 1])) continue;
    fail_expected(op, indexed("block_mapping", i).c_str(),
                  "a destination that is no source (pairs are copied in any order)",
                  std::to_string(pairs[2 * i + 1]));
  }
}

inline void check_mapping_shape(const char* op, const TensorRef& mapping) {
  Sym pairs{"n"};
  Arg(op, "block_mapping", mapping).dtype({DType::i64}).shape({pairs, 2}).contiguous();
}

}  // namespace inferx
