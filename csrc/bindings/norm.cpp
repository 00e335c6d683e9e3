#include "bindings/bindings.h"

namespace inferx {

void bind_norm(pybind11::module_&) {}

}  // namespace inferx
