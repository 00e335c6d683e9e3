#include "bindings/checks/swap_blocks.h"

#include "bindings/bindings.h"
#include "block_runs.h"
#include "cpu/move_blocks.h"

namespace py = pybind11;

namespace inferx {
namespace {

void swap_blocks(const TensorRef& src, const TensorRef& dst, const TensorRef& mapping) {
  constexpr const char* op = "swap_blocks";
  Arg(op, "src", src).on_cpu();
  Arg(op, "dst", dst).on_cpu();
  const SwapBlocksArgs args = check_swap_blocks(op, src, dst, mapping);
  const cpu::SwapBlocksParams params{src.ptr<char>(), dst.ptr<char>(),        args.shape,     args.from_steps,
                                     args.to_steps,   mapping.ptr<int64_t>(), mapping.size(0)};
  py::gil_scoped_release nogil;
  cpu::swap_blocks(params);
}

// For tests: how pairs are grouped into copies, as (source, destination, count).
py::list runs_of(const TensorRef& mapping) {
  check_mapping_shape("_block_runs", mapping);
  Arg("_block_runs", "block_mapping", mapping).on_cpu();
  py::list list;
  for (const BlockRun& run : block_runs(mapping.ptr<int64_t>(), mapping.size(0))) {
    list.append(py::make_tuple(run.source, run.destination, run.count));
  }
  return list;
}

}  // namespace

void bind_swap_blocks(py::module_& m) {
  m.def("swap_blocks", &swap_blocks, py::arg("src"), py::arg("dst"), py::arg("block_mapping"));
  m.def("_block_runs", &runs_of, py::arg("block_mapping"));
}

}  // namespace inferx
