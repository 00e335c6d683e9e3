#include "cpu/copy_blocks.h"

#include "bindings/bindings.h"
#include "bindings/checks/copy_blocks.h"
#ifdef INFERX_WITH_CUDA
#include "kernels/launch.h"
#endif

namespace py = pybind11;

namespace inferx {
namespace {

constexpr const char* kOp = "copy_blocks";

void check_mapping(const TensorRef& mapping, int64_t num_blocks) {
  check_mapping_shape(kOp, mapping);
  Arg(kOp, "block_mapping", mapping).on_cpu();
  check_pairs(kOp, mapping, num_blocks, num_blocks, true);
}

void copy_blocks(const py::sequence& key_caches, const py::sequence& value_caches, const TensorRef& mapping) {
  Arg(kOp, "block_mapping", mapping).on_cpu();
  const CopyBlocksArgs args(kOp, key_caches, value_caches, mapping);
  check_mapping(mapping, args.num_blocks);
  const cpu::CopyBlocksParams params{args.layouts.data(), static_cast<int64_t>(args.layouts.size()),
                                     mapping.ptr<int64_t>(), mapping.size(0)};
  if (params.num_pairs == 0) return;
  py::gil_scoped_release nogil;
  cpu::copy_blocks(params);
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
