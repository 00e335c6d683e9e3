// The checks of gather_blocks and scatter_blocks, the same on every device.
#pragma once
#include "bindings/checks/blocks.h"

namespace inferx {

// One call's caches, and how each lies in memory beside the buffer's dense blocks.
struct GatherBlocksArgs {
  GatherBlocksArgs(const char* op, const char* buffer_name, const TensorRef& buffer,
                   const pybind11::sequence& tensors, const TensorRef& block_ids, bool writes_caches);

  Caches caches;
  std::vector<BufferedCache> views;
  int64_t num_blocks = 0;
};

// Strides of a dense tensor like `t`, without those of the first dimension.
inline std::vector<int64_t> dense_block_strides(const TensorRef& t) {
  std::vector<int64_t> strides(t.ndim - 1);
  int64_t step = 1;
  for (int i = t.ndim - 1; i > 0; step *= t.shape[i--]) strides[i - 1] = step;
  return strides;
}

inline GatherBlocksArgs::GatherBlocksArgs(const char* op, const char* buffer_name, const TensorRef& buffer,
                                          const pybind11::sequence& tensors, const TensorRef& block_ids,
                                          bool writes_caches) {
  Sym n{"n"};
  Arg(op, "block_ids", block_ids).dtype({DType::i64}).shape({n}).contiguous();
  append_caches(op, "caches", tensors, caches);
  for (const auto& cache : caches) {
    const TensorRef &t = cache->tensor, &first = caches[0]->tensor;
    const Arg arg(op, cache->name.c_str(), t);
    arg.min_ndim(2).same_device("block_ids", block_ids).last_dim_contiguous();
    arg.same_shape("caches[0]", first).same_dtype("caches[0]", first);
    if (writes_caches) arg.not_self_overlapping();
    check_disjoint(op, writes_caches ? cache->name.c_str() : buffer_name, writes_caches ? t : buffer,
                   writes_caches ? buffer_name : cache->name.c_str(), writes_caches ? buffer : t);
    BufferedCache view{t.ptr<char>(), {}, {}, {}};
    const std::vector<int64_t> dense = dense_block_strides(t);
    view.shape = block_shape(op, cache->name.c_str(), t, dense.data(), view.steps, view.buffer_steps);
    view.buffer_steps.block = view.shape.bytes();
    views.push_back(view);
    num_blocks = t.size(0);
  }
  // The buffer: [caches, n, *block].
  const Arg arg(op, buffer_name, buffer);
  arg.same_device("block_ids", block_ids);
  if (caches.empty()) return;
  const TensorRef& first = caches[0]->tensor;
  arg.same_dtype("caches[0]", first);
  std::vector<int64_t> wanted{static_cast<int64_t>(caches.size()), n.value};
  wanted.insert(wanted.end(), first.shape + 1, first.shape + first.ndim);
  if (buffer.ndim != first.ndim + 1 || !std::equal(wanted.begin(), wanted.end(), buffer.shape)) {
    std::string text;
    for (int64_t size : wanted) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    arg.expected("shape " + text + "] (caches, block_ids, a block)", shape_string(buffer));
  }
  arg.contiguous();
  if (writes_caches) {
    check_written_caches(op, caches, "block_ids", block_ids);
  } else {
    check_disjoint(op, buffer_name, buffer, "block_ids", block_ids);
  }
}

// For ids that lie on the CPU: in range, or -1 for none.
inline void check_block_ids(const char* op, const TensorRef& block_ids, int64_t num_blocks, bool once) {
  std::unordered_set<int64_t> seen;
  for (int64_t i = 0; i < block_ids.size(0); ++i) {
    const int64_t id = block_ids.ptr<int64_t>()[i];
    if (id == -1) continue;
    check_block(op, indexed("block_ids", i), id, num_blocks);
    if (!once || seen.insert(id).second) continue;
    fail_expected(op, indexed("block_ids", i).c_str(), "each block once", std::to_string(id) + " again");
  }
}

}  // namespace inferx
