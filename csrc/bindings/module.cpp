#include "bindings/bindings.h"
#ifdef INFERX_WITH_CUDA
#include "bindings/cuda/families.h"
#endif

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kernels of inferx.  The public interface is inferx.ops.";
  inferx::bind_info(m);
  inferx::bind_norm(m);
  inferx::bind_activation(m);
  inferx::bind_rotary(m);
  inferx::bind_sampling(m);
  inferx::bind_copy_blocks(m);
  inferx::bind_linear(m);
  inferx::bind_step_program(m);
  inferx::bind_experts(m);
  inferx::bind_mla(m);
  inferx::bind_attention(m);
  inferx::bind_reshape_and_cache(m);
  inferx::bind_rope_and_cache(m);
  inferx::bind_swap_blocks(m);
  inferx::bind_gather_blocks(m);
  inferx::bind_moe_routing(m);
  inferx::bind_moe_align(m);
  inferx::bind_moe_sum(m);
  inferx::bind_token_bitmask(m);
#ifdef INFERX_WITH_CUDA
  auto cuda = m.def_submodule("cuda", "The same functions for CUDA tensors.");
  inferx::bind_cuda_families(cuda);
#endif
}
