#include "kernels/copy_blocks.h"

#include "bindings/checks/copy_blocks.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

bool same_layout(const BlockLayout& a, const BlockLayout& b) {
  return a.num_blocks == b.num_blocks && a.block_stride == b.block_stride && a.chunks == b.chunks &&
         a.chunk_stride == b.chunk_stride && a.chunk_bytes == b.chunk_bytes;
}

// One launch for each run of caches with the same layout: for a usual model that is one.
void copy_blocks(const py::sequence& key_caches, const py::sequence& value_caches, const TensorRef& mapping) {
  constexpr const char* op = "copy_blocks";
  DeviceCall call(op, "block_mapping", mapping);
  const CopyBlocksArgs args(op, key_caches, value_caches, mapping);
  call.reads("block_mapping", mapping);
  for (const auto& cache : args.caches) call.writes(cache->name.c_str(), cache->tensor);
  const std::vector<BlockLayout>& layouts = args.layouts;
  call.run([&](void* stream) {
    for (size_t begin = 0, end; begin < layouts.size(); begin = end) {
      const BlockLayout& first = layouts[begin];
      cuda::CopyBlocksParams p{};
      for (end = begin; end < layouts.size() && end - begin < cuda::kMaxCopyTensors; ++end) {
        if (!same_layout(first, layouts[end])) break;
        p.bases[end - begin] = layouts[end].base;
      }
      p.num_tensors = static_cast<int>(end - begin);
      p.shape = {1, first.chunks, first.chunk_bytes};
      p.steps = {first.block_stride, 0, first.chunk_stride};
      p.num_blocks = first.num_blocks;
      p.pairs = mapping.ptr<int64_t>();
      p.num_pairs = mapping.size(0);
      const cuda::Error error = cuda::launch_copy_blocks(p, stream);
      if (error != cuda::kSuccess) return error;
    }
    return cuda::kSuccess;
  });
}

}  // namespace

void bind_cuda_copy_blocks(py::module_& m) {
  m.def("copy_blocks", &copy_blocks, py::arg("key_caches"), py::arg("value_caches"),
        py::arg("block_mapping"));
}

}  // namespace inferx
