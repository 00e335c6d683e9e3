// The executor's self-test kernels as a Python module, one per build: inferx_selftest_fast and _checked under
// the executor, inferx_selftest_cuda for a GPU.
#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>

#include "bindings/cuda/device_call.h"
#include "simt/selftest/registry.h"
#ifdef INFERX_SIMT
#include "simt/bind_control.h"
#endif

namespace py = pybind11;

namespace {

using simt::selftest::Run;
using simt::selftest::Test;

dim3 to_dim3(const std::vector<unsigned>& sizes) {
  return {sizes.empty() ? 1 : sizes[0], sizes.size() > 1 ? sizes[1] : 1, sizes.size() > 2 ? sizes[2] : 1};
}

void run(const std::string& name, const std::vector<py::object>& inputs,
         const std::vector<py::object>& outputs, const std::vector<int64_t>& numbers,
         const std::vector<unsigned>& grid, const std::vector<unsigned>& block, size_t shared) {
  const auto found = simt::selftest::registry().find(name);
  if (found == simt::selftest::registry().end())
    throw std::invalid_argument("there is no self-test '" + name + "'");
  static const char* const input_names[] = {"in0", "in1", "in2", "in3", "in4", "in5", "in6", "in7"};
  static const char* const output_names[] = {"out0", "out1", "out2", "out3", "out4", "out5", "out6", "out7"};
  if (inputs.size() > 8 || outputs.size() > 8) throw std::invalid_argument("at most 8 inputs and 8 outputs");
  std::vector<inferx::TensorRef> refs(inputs.size() + outputs.size());
  Test test;
  for (size_t i = 0; i < refs.size(); ++i) {
    const bool in = i < inputs.size();
    const size_t k = in ? i : i - inputs.size();
    if (!inferx::load_tensor((in ? inputs : outputs)[k].ptr(), refs[i]))
      throw py::type_error("expected torch.Tensor");
    if (in)
      test.inputs.push_back(refs[i].data);
    else
      test.outputs.push_back(refs[i].data);
  }
  if (refs.empty()) throw std::invalid_argument("a self-test needs a tensor");
  inferx::DeviceCall call(name.c_str(), refs.size() > inputs.size() ? "out0" : "in0",
                          refs[refs.size() > inputs.size() ? inputs.size() : 0]);
  for (size_t i = 0; i < inputs.size(); ++i) call.reads(input_names[i], refs[i]);
  for (size_t i = 0; i < outputs.size(); ++i) call.writes(output_names[i], refs[inputs.size() + i]);
  test.numbers = numbers;
  test.grid = to_dim3(grid);
  test.block = to_dim3(block);
  test.shared = shared;
  call.run([&](void* stream) {
    test.stream = stream;
    return found->second(test);
  });
}

}  // namespace

PYBIND11_MODULE(INFERX_SIMT_MODULE, m) {
  m.def("selftest", &run, py::arg("name"), py::kw_only(), py::arg("inputs") = std::vector<py::object>(),
        py::arg("outputs") = std::vector<py::object>(), py::arg("numbers") = std::vector<int64_t>(),
        py::arg("grid") = std::vector<unsigned>{1}, py::arg("block") = std::vector<unsigned>{32},
        py::arg("shared") = 0);
#ifdef INFERX_SIMT
  simt::bind_control(m);
#endif
}
