// From a checked tensor to the plain structs of csrc/cpu.
#pragma once
#include "bindings/tensor_ref.h"
#include "rows.h"

namespace inferx {

inline Rows rows_of(const TensorRef& t) { return make_rows(t.ndim - 1, t.shape, t.strides); }

}  // namespace inferx
