// The executor's controls in Python: configure(), stats(), guarded memory.
#pragma once
#include <pybind11/pybind11.h>

namespace simt {

void bind_control(pybind11::module_& m);

}  // namespace simt
