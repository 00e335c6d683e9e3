// The Python module of a build for the SIMT executor: the device ops over CPU tensors, and its controls.
#include "bindings/cuda/families.h"
#include "simt/bind_control.h"

PYBIND11_MODULE(INFERX_SIMT_MODULE, m) {
  m.doc() = "The CUDA kernels, run on the CPU by the SIMT executor.  For tests.";
  inferx::bind_cuda_families(m);
  simt::bind_control(m);
}
