#include "bindings/bindings.h"

namespace inferx {

void bind_copy_blocks(pybind11::module_&) {}

}  // namespace inferx
