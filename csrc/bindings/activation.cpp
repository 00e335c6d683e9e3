#include "bindings/bindings.h"

namespace inferx {

void bind_activation(pybind11::module_&) {}

}  // namespace inferx
