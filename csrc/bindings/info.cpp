// What was compiled, and the number of threads.
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
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

// For the tests: `jobs` parallel_for of random sizes under one team.  Returns (items that were not done
// exactly once, or whose writes the leader did not see; items done by other threads than the leader).
std::pair<int64_t, int64_t> team_selftest(int64_t jobs, uint32_t seed) {
  constexpr int64_t kMaxItems = 4096;
  std::vector<std::atomic<uint8_t>> times(kMaxItems);
  std::vector<int64_t> written(kMaxItems);
  std::atomic<int64_t> elsewhere{0};
  int64_t wrong = 0;
  std::minstd_rand random(seed);
  const auto up_to = [&](uint32_t limit) { return static_cast<int64_t>(random() % limit); };
  const auto work = [&] {
    const std::thread::id leader = std::this_thread::get_id();
    for (int64_t job = 1; job <= jobs; ++job) {
      const int64_t count = up_to(4) == 0 ? up_to(kMaxItems) : up_to(40);
      const int64_t grain = 1 + up_to(up_to(2) ? 3 : 100);
      const uint32_t cost = up_to(8) == 0 ? 2000 : 20;
      for (int64_t i = 0; i < count; ++i) times[i].store(0, std::memory_order_relaxed);
      cpu::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        if (std::this_thread::get_id() != leader) elsewhere.fetch_add(end - begin);
        for (int64_t i = begin; i < end; ++i) {
          times[i].fetch_add(1, std::memory_order_relaxed);
          volatile uint32_t spent = 0;
          while (spent < cost * (i % 7)) spent = spent + 1;
          int64_t parts[3] = {};  // a job within a job
          cpu::parallel_for(3, 1, [&](int64_t b, int64_t e) {
            for (int64_t k = b; k < e; ++k) parts[k] = job + k;
          });
          written[i] = parts[0] + parts[1] + parts[2] + i;
        }
      });
      for (int64_t i = 0; i < count; ++i) {
        wrong += times[i].load(std::memory_order_relaxed) != 1 || written[i] != 3 * job + 3 + i;
      }
    }
  };
  py::gil_scoped_release nogil;
  cpu::run_with_team(work);
  return {wrong, elsewhere.load()};
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
  m.def("_team_selftest", &team_selftest, py::arg("jobs"), py::arg("seed"));
  m.def("get_num_threads", &cpu::get_num_threads);
  m.def("_describe_tensor", &describe_tensor, py::arg("tensor"));
}

}  // namespace inferx
