#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kernels of inferx.  The public interface is inferx.ops.";
  inferx::bind_info(m);
  inferx::bind_norm(m);
  inferx::bind_activation(m);
  inferx::bind_rotary(m);
  inferx::bind_copy_blocks(m);
  inferx::bind_linear(m);
  inferx::bind_attention(m);
}
