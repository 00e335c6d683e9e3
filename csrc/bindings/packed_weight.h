// Packed matrices as Python holds them, checks of them and of what they are made from.
#pragma once
#include <string>

#include "bindings/check.h"
#include "cpu/packed_weight.h"

namespace inferx {

// A packed matrix together with the uint8 tensor that holds it.
struct WeightHandle {
  cpu::PackedWeight weight;
  pybind11::object buffer;
};

// The matrix [n, k] of a type, without memory yet; fails on `dtype` and `shape`.
cpu::PackedWeight describe_weight(const char* op, const std::string& dtype, int64_t n, int64_t k);

// `data` holds the matrix as a checkpoint does.  Returns the bytes from a row to the next.
int64_t check_source(const char* op, const TensorRef& data, const cpu::PackedWeight& weight);

// Memory for `nbytes` of packed matrices.
void load_buffer(const char* op, const pybind11::object& buffer, int64_t nbytes, TensorRef& memory);

}  // namespace inferx
