#include "kernels/moe_align.h"

#include "bindings/checks/moe_align.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void moe_align_block_size(const TensorRef& sorted_token_ids, const TensorRef& expert_ids,
                          const TensorRef& num_tokens_post_padded, const TensorRef& topk_ids,
                          int64_t num_experts, int64_t block_size) {
  constexpr const char* op = "moe_align_block_size";
  DeviceCall call(op, "topk_ids", topk_ids);
  const moe::AlignParams params = check_moe_align(op, sorted_token_ids, expert_ids, num_tokens_post_padded,
                                                  topk_ids, num_experts, block_size);
  call.reads("topk_ids", topk_ids).writes("sorted_token_ids", sorted_token_ids);
  call.writes("expert_ids", expert_ids).writes("num_tokens_post_padded", num_tokens_post_padded);
  call.run([&](void* stream) { return cuda::launch_moe_align(params, stream); });
}

}  // namespace

void bind_cuda_moe_align(py::module_& m) {
  m.def("moe_align_block_size", &moe_align_block_size, py::arg("sorted_token_ids"), py::arg("expert_ids"),
        py::arg("num_tokens_post_padded"), py::arg("topk_ids"), py::arg("num_experts"),
        py::arg("block_size"));
}

}  // namespace inferx
