#include "cpu/copy_blocks.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "block_layout.h"
#ifdef INFERX_WITH_CUDA
#include "kernels/copy_blocks.h"
#endif

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* kOp = "copy_blocks";

// A cache tensor and the name that errors give it, "key_caches[3]".
struct Cache {
  std::string name;
  TensorRef tensor;
};
using Caches = std::vector<std::unique_ptr<Cache>>;

void append_caches(const char* argument, const py::sequence& tensors, Caches& caches) {
  size_t index = 0;
  for (py::handle item : tensors) {
    auto cache = std::make_unique<Cache>();
    cache->name = std::string(argument) + "[" + std::to_string(index++) + "]";
    if (!load_tensor(item.ptr(), cache->tensor)) {
      throw py::type_error(std::string(kOp) + ": " + cache->name + ": expected a torch.Tensor, got " +
                           py::str(py::type::of(item)).cast<std::string>());
    }
    caches.push_back(std::move(cache));
  }
}

// The dimensions of one block, merged: a dense run first, then at most one dimension that steps over runs.
BlockLayout block_layout(const Cache& cache) {
  const TensorRef& t = cache.tensor;
  const Arg arg(kOp, cache.name.c_str(), t);
  arg.min_ndim(2).last_dim_contiguous().not_self_overlapping();

  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size), innermost first
  int64_t elements = 1;
  for (int i = 1; i < t.ndim; ++i) {
    elements *= t.shape[i];
    if (t.shape[i] != 1) dims.emplace_back(t.strides[i], t.shape[i]);
  }
  const int64_t item = static_cast<int64_t>(dtype_size(t.dtype));
  BlockLayout layout{t.ptr<char>(), t.size(0), t.stride(0) * item, 1, 0, item};
  if (elements == 0) {
    layout.chunk_bytes = 0;
    return layout;
  }
  std::sort(dims.begin(), dims.end());
  for (const auto& [stride, size] : dims) {
    if (layout.chunks == 1 && stride * item == layout.chunk_bytes) {
      layout.chunk_bytes *= size;
    } else if (layout.chunks == 1) {
      layout.chunks = size;
      layout.chunk_stride = stride * item;
    } else if (stride * item == layout.chunks * layout.chunk_stride) {
      layout.chunks *= size;
    } else {
      arg.expected("blocks that are one run of memory or evenly spaced runs", "shape " + shape_string(t));
    }
  }
  return layout;
}

std::string pair_name(int64_t pair) { return "block_mapping[" + std::to_string(pair) + "]"; }

// Copies run in any order, so a destination may be written once and never read.
void check_pairs(const int64_t* pairs, int64_t num_pairs, int64_t num_blocks) {
  std::unordered_set<int64_t> sources, destinations;
  for (int64_t i = 0; i < num_pairs; ++i) {
    for (int side = 0; side < 2; ++side) {
      const int64_t block = pairs[2 * i + side];
      if (block >= 0 && block < num_blocks) continue;
      throw py::index_error(std::string(kOp) + ": " + pair_name(i) + ": expected 0 <= block < " +
                            std::to_string(num_blocks) + ", got " + std::to_string(block));
    }
    sources.insert(pairs[2 * i]);
    if (!destinations.insert(pairs[2 * i + 1]).second) {
      fail_expected(kOp, pair_name(i).c_str(), "each destination once",
                    std::to_string(pairs[2 * i + 1]) + " again");
    }
  }
  for (int64_t i = 0; i < num_pairs; ++i) {
    if (!sources.count(pairs[2 * i + 1])) continue;
    fail_expected(kOp, pair_name(i).c_str(),
                  "a destination that is no source (pairs are copied in any order)",
                  std::to_string(pairs[2 * i + 1]));
  }
}

void copy_on_cpu(const std::vector<BlockLayout>& layouts, const TensorRef& mapping) {
  const cpu::CopyBlocksParams params{layouts.data(), static_cast<int64_t>(layouts.size()),
                                     mapping.ptr<int64_t>(), mapping.size(0)};
  py::gil_scoped_release nogil;
  cpu::copy_blocks(params);
}

#ifdef INFERX_WITH_CUDA
bool same_layout(const BlockLayout& a, const BlockLayout& b) {
  return a.num_blocks == b.num_blocks && a.block_stride == b.block_stride && a.chunks == b.chunks &&
         a.chunk_stride == b.chunk_stride && a.chunk_bytes == b.chunk_bytes;
}

// One launch for each run of caches with the same layout: for a usual model that is one.
void copy_on_cuda(const std::vector<BlockLayout>& layouts, const TensorRef& mapping) {
  void* stream = current_cuda_stream(mapping.device_id);
  for (size_t begin = 0; begin < layouts.size();) {
    const BlockLayout& first = layouts[begin];
    cuda::CopyBlocksParams params{};
    size_t end = begin;
    while (end < layouts.size() && end - begin < cuda::kMaxCopyTensors && same_layout(first, layouts[end])) {
      params.bases[end - begin] = layouts[end].base;
      ++end;
    }
    params.num_tensors = static_cast<int>(end - begin);
    params.num_blocks = first.num_blocks;
    params.block_stride = first.block_stride;
    params.chunks = first.chunks;
    params.chunk_stride = first.chunk_stride;
    params.chunk_bytes = first.chunk_bytes;
    params.pairs = mapping.ptr<int64_t>();
    params.num_pairs = mapping.size(0);
    const cuda::Error error = cuda::launch_copy_blocks(params, mapping.device_id, stream);
    if (error != cuda::kSuccess) {
      throw std::runtime_error(std::string(kOp) + ": CUDA: " + cuda::error_string(error));
    }
    begin = end;
  }
}
#endif

void check_mapping(const TensorRef& mapping, int64_t num_blocks) {
  Sym pairs{"n"};
  Arg(kOp, "block_mapping", mapping).dtype({DType::i64}).shape({pairs, 2}).contiguous();
  if (mapping.is_cpu()) check_pairs(mapping.ptr<int64_t>(), mapping.size(0), num_blocks);
}

void copy_blocks(const py::sequence& key_caches, const py::sequence& value_caches, const TensorRef& mapping) {
  Caches caches;
  append_caches("key_caches", key_caches, caches);
  append_caches("value_caches", value_caches, caches);
  if (key_caches.size() != value_caches.size()) {
    fail_expected(kOp, "value_caches", std::to_string(key_caches.size()) + " tensors as key_caches",
                  std::to_string(value_caches.size()));
  }
  std::vector<BlockLayout> layouts;
  int64_t num_blocks = INT64_MAX;
  for (const auto& cache : caches) {
    const Arg arg(kOp, cache->name.c_str(), cache->tensor);
    if (cache->tensor.dtype == DType::other) arg.expected("a dtype inferx knows", "another");
#ifndef INFERX_WITH_CUDA
    arg.on_cpu();
#endif
    arg.same_device("block_mapping", mapping);
    layouts.push_back(block_layout(*cache));
    num_blocks = std::min(num_blocks, layouts.back().num_blocks);
  }
  check_mapping(mapping, caches.empty() ? 0 : num_blocks);
  if (mapping.size(0) == 0 || caches.empty()) return;
#ifdef INFERX_WITH_CUDA
  if (mapping.is_cuda()) return copy_on_cuda(layouts, mapping);
#endif
  copy_on_cpu(layouts, mapping);
}

}  // namespace

void bind_copy_blocks(py::module_& m) {
  m.def("copy_blocks", &copy_blocks, py::arg("key_caches"), py::arg("value_caches"),
        py::arg("block_mapping"));
  // For a mapping that is about to move to the GPU, where it cannot be checked.
  m.def("check_block_mapping", &check_mapping, py::arg("block_mapping"), py::arg("num_blocks"));
#ifdef INFERX_WITH_CUDA
  m.def("cuda_device_count", [] {
    int count = 0;
    const cuda::Error error = cuda::device_count(&count);
    if (error != cuda::kSuccess) throw std::runtime_error(std::string("CUDA: ") + cuda::error_string(error));
    return count;
  });
#else
  m.def("cuda_device_count",
        []() -> int { throw std::runtime_error("CUDA: this build of inferx has none"); });
#endif
}

}  // namespace inferx
