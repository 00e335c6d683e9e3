// The Python module of a build for the SIMT executor: the device ops over CPU tensors, and its controls.
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings/cuda/families.h"
#include "simt/control.h"

namespace py = pybind11;

PYBIND11_MODULE(INFERX_SIMT_MODULE, m) {
  m.doc() = "The CUDA kernels, run on the CPU by the SIMT executor.  For tests.";
  inferx::bind_cuda_families(m);
  m.def("configure", [](const std::map<std::string, long>& options) {
    for (const auto& [key, value] : options) simt_config(key.c_str(), value);
  });
  m.def("is_checked", [] { return simt_instrumented() != 0; });
  m.def("stats", [] {
    uint64_t values[8];
    simt_stats(values);
    const char* names[] = {"switches", "warp_ops",       "mma",      "wgmma",
                           "ldmatrix", "ldmatrix_extra", "accesses", "blocks"};
    std::map<std::string, uint64_t> stats;
    for (int i = 0; i < 8; ++i) stats[names[i]] = values[i];
    return stats;
  });
}
