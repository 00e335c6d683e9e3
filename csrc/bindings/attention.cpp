#include "bindings/bindings.h"

namespace inferx {

void bind_attention(pybind11::module_&) {}

}  // namespace inferx
