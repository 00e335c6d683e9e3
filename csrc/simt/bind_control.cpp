#include "simt/bind_control.h"

#include <pybind11/stl.h>

#include <memory>

#include "simt/control.h"
#include "simt/host/memory.h"

namespace py = pybind11;

namespace simt {

void bind_control(py::module_& m) {
  // The lock of a running session may be held by a thread that wants Python's: never wait for it with that.
  const py::call_guard<py::gil_scoped_release> nogil;
  m.def("configure", &host::configure, py::arg("options"), nogil,
        "Sets order (0 forward, 1 reverse, 2 random), seed, preempt (checked build: every n-th access), "
        "threads, time_limit (seconds of a launch, 0: none), "
        "num_sms, shared_limit, uninitialised, bank_conflicts.  ValueError for others.");
  m.def("configuration", &host::configuration);
  m.def("is_checked", &host::is_checked);
  m.def("stats", &host::take_stats, "Counters since the last call.");
  m.def(
      "bank_conflicts",
      [] {
        py::list lines;
        for (const host::LineConflicts& l : host::take_bank_conflicts())
          lines.append(py::make_tuple(l.line, l.operations, l.extra));
        return lines;
      },
      "(line, operations of a warp, further cycles) of shared loads and stores since the last call, worst "
      "first; "
      "in the checked build after configure({'bank_conflicts': 1}).");

  py::class_<host::GuardedBuffer>(
      m, "GuardedBuffer", py::buffer_protocol(), py::module_local(),
      "Memory that ends at a guard page and starts as NaN, for torch.frombuffer().")
      .def(py::init<size_t>(), py::arg("bytes"))
      .def_buffer([](host::GuardedBuffer& buffer) {
        return py::buffer_info(buffer.data(), 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(buffer.bytes()));
      });
}

}  // namespace simt
