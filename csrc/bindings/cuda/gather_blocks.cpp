#include "kernels/gather_blocks.h"

#include "bindings/checks/gather_blocks.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

bool same(const BlockSteps& a, const BlockSteps& b) {
  return a.block == b.block && a.outer == b.outer && a.inner == b.inner;
}

// Caches of one shape that have the same strides are merged alike.
bool same_layout(const BufferedCache& a, const BufferedCache& b) {
  return same(a.steps, b.steps) && same(a.buffer_steps, b.buffer_steps) && a.shape.outer == b.shape.outer &&
         a.shape.inner == b.shape.inner && a.shape.run_bytes == b.shape.run_bytes;
}

// One launch for each run of caches with the same layout: for a usual model that is one.
cuda::Error move_all(const GatherBlocksArgs& args, const TensorRef& buffer, const TensorRef& block_ids,
                     cuda::Error (*launch)(const cuda::GatherBlocksParams&, void*), void* stream) {
  const std::vector<BufferedCache>& views = args.views;
  for (size_t begin = 0, end; begin < views.size(); begin = end) {
    const BufferedCache& first = views[begin];
    cuda::GatherBlocksParams p{};
    for (end = begin; end < views.size() && end - begin < cuda::kMaxGatherTensors; ++end) {
      if (!same_layout(first, views[end])) break;
      p.bases[end - begin] = views[end].base;
    }
    p.num_tensors = static_cast<int>(end - begin);
    p.ids = block_ids.ptr<int64_t>();
    p.num_ids = block_ids.size(0);
    p.num_blocks = args.num_blocks;
    p.shape = first.shape;
    p.steps = first.steps;
    p.buffer_steps = first.buffer_steps;
    p.buffer = buffer.ptr<char>() + static_cast<int64_t>(begin) * p.num_ids * p.shape.bytes();
    const cuda::Error error = launch(p, stream);
    if (error != cuda::kSuccess) return error;
  }
  return cuda::kSuccess;
}

void gather_blocks(const TensorRef& out, const py::sequence& caches, const TensorRef& block_ids) {
  constexpr const char* op = "gather_blocks";
  DeviceCall call(op, "block_ids", block_ids);
  const GatherBlocksArgs args(op, "out", out, caches, block_ids, false);
  call.reads("block_ids", block_ids).writes("out", out);
  for (const auto& cache : args.caches) call.reads(cache->name.c_str(), cache->tensor);
  call.run([&](void* stream) { return move_all(args, out, block_ids, cuda::launch_gather_blocks, stream); });
}

void scatter_blocks(const TensorRef& buffer, const py::sequence& caches, const TensorRef& block_ids) {
  constexpr const char* op = "scatter_blocks";
  DeviceCall call(op, "block_ids", block_ids);
  const GatherBlocksArgs args(op, "buffer", buffer, caches, block_ids, true);
  call.reads("block_ids", block_ids).reads("buffer", buffer);
  for (const auto& cache : args.caches) call.writes(cache->name.c_str(), cache->tensor);
  call.run(
      [&](void* stream) { return move_all(args, buffer, block_ids, cuda::launch_scatter_blocks, stream); });
}

}  // namespace

void bind_cuda_gather_blocks(py::module_& m) {
  m.def("gather_blocks", &gather_blocks, py::arg("out"), py::arg("caches"), py::arg("block_ids"));
  m.def("scatter_blocks", &scatter_blocks, py::arg("buffer"), py::arg("caches"), py::arg("block_ids"));
}

}  // namespace inferx
