#include "bindings/bindings.h"

namespace inferx {

void bind_rotary(pybind11::module_&) {}

}  // namespace inferx
