#include "bindings/checks/gather_blocks.h"

#include "bindings/bindings.h"
#include "cpu/move_blocks.h"

namespace py = pybind11;

namespace inferx {
namespace {

cpu::GatherBlocksParams params_of(const GatherBlocksArgs& args, const TensorRef& buffer,
                                  const TensorRef& block_ids) {
  return {args.views.data(), static_cast<int64_t>(args.views.size()), buffer.ptr<char>(),
          block_ids.ptr<int64_t>(), block_ids.size(0)};
}

void gather_blocks(const TensorRef& out, const py::sequence& caches, const TensorRef& block_ids) {
  constexpr const char* op = "gather_blocks";
  Arg(op, "block_ids", block_ids).on_cpu();
  const GatherBlocksArgs args(op, "out", out, caches, block_ids, false);
  check_block_ids(op, block_ids, args.num_blocks, false);
  const cpu::GatherBlocksParams params = params_of(args, out, block_ids);
  py::gil_scoped_release nogil;
  cpu::gather_blocks(params);
}

void scatter_blocks(const TensorRef& buffer, const py::sequence& caches, const TensorRef& block_ids) {
  constexpr const char* op = "scatter_blocks";
  Arg(op, "block_ids", block_ids).on_cpu();
  const GatherBlocksArgs args(op, "buffer", buffer, caches, block_ids, true);
  check_block_ids(op, block_ids, args.num_blocks, true);
  const cpu::GatherBlocksParams params = params_of(args, buffer, block_ids);
  py::gil_scoped_release nogil;
  cpu::scatter_blocks(params);
}

}  // namespace

void bind_gather_blocks(py::module_& m) {
  m.def("gather_blocks", &gather_blocks, py::arg("out"), py::arg("caches"), py::arg("block_ids"));
  m.def("scatter_blocks", &scatter_blocks, py::arg("buffer"), py::arg("caches"), py::arg("block_ids"));
  // For ids that are about to move to the GPU, where they cannot be checked.
  m.def("check_block_ids", [](const char* op, const TensorRef& block_ids, int64_t num_blocks, bool once) {
    Sym n{"n"};
    Arg(op, "block_ids", block_ids).on_cpu().dtype({DType::i64}).shape({n}).contiguous();
    check_block_ids(op, block_ids, num_blocks, once);
  });
}

}  // namespace inferx
