#include "kernels/swap_blocks.h"

#include <cstring>

#include "bindings/checks/swap_blocks.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "block_runs.h"
#include "kernels/memory_copy.h"

namespace py = pybind11;

namespace inferx {

#ifdef INFERX_SIMT
namespace cuda {

Error copy_rows(char* to, int64_t to_pitch, const char* from, int64_t from_pitch, int64_t width,
                int64_t height, void*) {
  for (int64_t i = 0; i < height; ++i) {
    std::memcpy(to + i * to_pitch, from + i * from_pitch, static_cast<size_t>(width));
  }
  return kSuccess;
}

bool device_can_reach(const void*) { return true; }

}  // namespace cuda
#endif

namespace {

// From here on a copy engine moves a run at the link's full rate.  Below, starting a copy (about 2 us) takes
// longer than the bytes do on PCIe 5 (50 GB/s), and one kernel for all pairs is faster; so it is for blocks
// that are not in one piece.
constexpr int64_t kCopyEngineBytes = 256 * 1024;

cuda::Error copy_by_kernel(const TensorRef& src, const TensorRef& dst, const SwapBlocksArgs& args,
                           const TensorRef& mapping, void* stream) {
  cuda::SwapBlocksParams p{};
  p.from = src.ptr<char>();
  p.to = dst.ptr<char>();
  p.shape = args.shape;
  p.from_steps = args.from_steps;
  p.to_steps = args.to_steps;
  const int64_t total = mapping.size(0);
  for (int64_t begin = 0; begin < total; begin += cuda::kMaxSwapPairs) {
    p.num_pairs = static_cast<int>(std::min<int64_t>(total - begin, cuda::kMaxSwapPairs));
    std::memcpy(p.pairs, mapping.ptr<int64_t>() + 2 * begin, sizeof(p.pairs[0]) * p.num_pairs);
    const cuda::Error error = cuda::launch_swap_blocks(p, stream);
    if (error != cuda::kSuccess) return error;
  }
  return cuda::kSuccess;
}

// One run of blocks: a single copy where blocks are dense, else one for each outer step of each block.
cuda::Error copy_run(const char* from, char* to, int64_t count, const SwapBlocksArgs& args, void* stream) {
  const auto& [shape, from_steps, to_steps] = args;
  if (shape.outer == 1 && shape.inner == 1) {
    return cuda::copy_rows(to, to_steps.block, from, from_steps.block, shape.run_bytes, count, stream);
  }
  for (int64_t block = 0; block < count; ++block) {
    for (int64_t o = 0; o < shape.outer; ++o) {
      const cuda::Error error =
          cuda::copy_rows(to + block * to_steps.block + o * to_steps.outer, to_steps.inner,
                          from + block * from_steps.block + o * from_steps.outer, from_steps.inner,
                          shape.run_bytes, shape.inner, stream);
      if (error != cuda::kSuccess) return error;
    }
  }
  return cuda::kSuccess;
}

// path: "kernel", "copy" (by the copy engines) or "auto", which tests and benchmarks may choose.
void swap_blocks(const TensorRef& src, const TensorRef& dst, const TensorRef& mapping,
                 const std::string& path) {
  constexpr const char* op = "swap_blocks";
  const bool from_host = !src.is_cuda();
  DeviceCall call(op, from_host ? "dst" : "src", from_host ? dst : src);
  const SwapBlocksArgs args = check_swap_blocks(op, src, dst, mapping);
  // The fences of the executor; a host tensor is on another device than the call.
  if (src.device_type == dst.device_type) call.reads("src", src).writes("dst", dst);
  if (mapping.size(0) == 0 || args.shape.bytes() == 0) return;

  const std::vector<BlockRun> runs = block_runs(mapping.ptr<int64_t>(), mapping.size(0));
  call.run([&](void* stream) {
    const bool host = src.device_type != dst.device_type;
    bool by_kernel = path == "kernel";
    if (path == "auto") {
      const int64_t mean = args.shape.bytes() * mapping.size(0) / static_cast<int64_t>(runs.size());
      const bool scattered = args.shape.outer > 1 || args.shape.inner > 1 || mean < kCopyEngineBytes;
      by_kernel = !host || (scattered && cuda::device_can_reach(from_host ? src.data : dst.data));
    }
    if (by_kernel) return copy_by_kernel(src, dst, args, mapping, stream);
    for (const BlockRun& run : runs) {
      const cuda::Error error =
          copy_run(src.ptr<char>() + run.source * args.from_steps.block,
                   dst.ptr<char>() + run.destination * args.to_steps.block, run.count, args, stream);
      if (error != cuda::kSuccess) return error;
    }
    return cuda::kSuccess;
  });
}

}  // namespace

void bind_cuda_swap_blocks(py::module_& m) {
  m.def("swap_blocks", &swap_blocks, py::arg("src"), py::arg("dst"), py::arg("block_mapping"),
        py::arg("path") = "auto");
}

}  // namespace inferx
