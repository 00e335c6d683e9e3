#include "bindings/bindings.h"

namespace inferx {

void bind_linear(pybind11::module_&) {}

}  // namespace inferx
