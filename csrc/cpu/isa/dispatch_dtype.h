// From a DType at run time to an element type: body(Type<float>{}), body(Type<f16>{}) or body(Type<bf16>{}).
#pragma once
#include "cpu/isa/vec.h"
#include "dtype.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

template <class T>
struct Type {
  using type = T;
};

// The caller has checked that `dtype` is one of the three.
template <class Body>
inline void dispatch_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f16:
      return body(Type<f16>{});
    case DType::bf16:
      return body(Type<bf16>{});
    default:
      return body(Type<float>{});
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
