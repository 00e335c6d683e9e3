// From a checked tensor to the plain structs of csrc/cpu.
#pragma once
#include "bindings/tensor_ref.h"
#include "cpu/rows.h"

namespace inferx {

inline cpu::Rows rows_of(const TensorRef& t) { return cpu::make_rows(t.ndim - 1, t.shape, t.strides); }

}  // namespace inferx
