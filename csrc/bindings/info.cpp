// What was compiled, and the number of threads.
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace py = pybind11;

namespace inferx {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::vector<std::string> simd_targets() {
#ifdef INFERX_X86_ISAS
  return {"base", "v3", "v4", "v4vnni"};
#else
  return {"base"};
#endif
}

// "80-real,90a-real" -> ["80-real", "90a-real"]
std::vector<std::string> cuda_architectures() {
  std::vector<std::string> archs;
#ifdef INFERX_WITH_CUDA
  const std::string text = INFERX_CUDA_ARCHS;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    archs.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
#endif
  return archs;
}

py::dict build_info() {
  py::dict info;
  info["version"] = INFERX_VERSION;
  info["compiler"] = compiler();
  info["cxx_standard"] = static_cast<long>(__cplusplus);
#ifdef INFERX_WITH_CUDA
  info["cuda"] = true;
  info["cuda_version"] = INFERX_CUDA_VERSION;
#else
  info["cuda"] = false;
  info["cuda_version"] = py::none();
#endif
  info["cuda_architectures"] = cuda_architectures();
  info["simd_targets"] = simd_targets();
  info["simd_target"] = cpu::isa_name(cpu::active_isa());
  info["openmp"] = _OPENMP;
  info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
      PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_PATCH);
  info["tensor_access"] = tensor_access();
  return info;
}

void set_num_threads(int count) {
  if (count < 1) fail_expected("set_num_threads", "count", "a positive number", std::to_string(count));
  cpu::set_num_threads(count);
}

// For the tests: what C++ sees of a tensor.
py::dict describe_tensor(const TensorRef& t) {
  py::dict seen;
  seen["data_ptr"] = reinterpret_cast<uintptr_t>(t.data);
  seen["dtype"] = dtype_name(t.dtype);
  seen["shape"] = std::vector<int64_t>(t.shape, t.shape + t.ndim);
  seen["strides"] = std::vector<int64_t>(t.strides, t.strides + t.ndim);
  seen["device"] = device_string(t);
  return seen;
}

}  // namespace

void bind_info(py::module_& m) {
  m.def("build_info", &build_info);
  m.def("simd_target", [] { return cpu::isa_name(cpu::active_isa()); });
  m.def("set_num_threads", &set_num_threads, py::arg("count"));
  m.def("get_num_threads", &cpu::get_num_threads);
  m.def("_describe_tensor", &describe_tensor, py::arg("tensor"));
}

}  // namespace inferx
