// Element types, shared by bindings, CPU kernels and CUDA launchers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace inferx {

enum class DType : uint8_t { f32, f16, bf16, f64, f8e4m3, f8e5m2, i8, u8, i16, i32, i64, boolean, other };

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* names[] = {"float32",     "float16", "bfloat16",     "float64", "float8_e4m3fn",
                                   "float8_e5m2", "int8",    "uint8",        "int16",   "int32",
                                   "int64",       "bool",    "another dtype"};
  return names[static_cast<int>(dtype)];
}

constexpr size_t dtype_size(DType dtype) {
  constexpr size_t sizes[] = {4, 2, 2, 8, 1, 1, 1, 1, 2, 4, 8, 1, 0};
  return sizes[static_cast<int>(dtype)];
}

}  // namespace inferx
