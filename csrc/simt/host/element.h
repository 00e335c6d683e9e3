// Operand elements of the matrix products, widened to float (exactly) or int.
#pragma once
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "simt/mma.h"

namespace simt::host {

inline float bits_to_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline float f16_to_float(uint16_t bits) {
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
#endif
}

struct Fp8Table {
  float value[256];
  explicit Fp8Table(__nv_fp8_interpretation_t type) {
    for (int i = 0; i < 256; ++i) {
      value[i] = f16_to_float(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(i), type).x);
    }
  }
};
inline const Fp8Table e4m3_table(__NV_E4M3), e5m2_table(__NV_E5M2);

// Element e of a register that holds kPerRegister of them.
template <MmaType Type>
struct Element {
  using Value = float;
  static constexpr int kBytes = Type == MmaType::tf32                           ? 4
                                : Type == MmaType::bf16 || Type == MmaType::f16 ? 2
                                                                                : 1;
  static constexpr int kPerRegister = 4 / kBytes;
  static Value get(uint32_t reg, int e) {
    if constexpr (Type == MmaType::bf16) return bits_to_float(e == 0 ? reg << 16 : reg & 0xFFFF0000u);
    if constexpr (Type == MmaType::f16) return f16_to_float(static_cast<uint16_t>(reg >> 16 * e));
    if constexpr (Type == MmaType::e4m3) return e4m3_table.value[reg >> 8 * e & 0xFF];
    if constexpr (Type == MmaType::e5m2) return e5m2_table.value[reg >> 8 * e & 0xFF];
    if constexpr (Type == MmaType::tf32) return bits_to_float(reg & 0xFFFFE000u);
  }
};
template <>
struct Element<MmaType::s8> {
  using Value = int;
  static constexpr int kBytes = 1, kPerRegister = 4;
  static Value get(uint32_t reg, int e) { return static_cast<int8_t>(reg >> 8 * e); }
};

// sum + a * b; sums of ints wrap.
inline float multiply_add(float sum, float a, float b) { return sum + a * b; }
inline int multiply_add(int sum, int a, int b) {
  return static_cast<int>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(a * b));
}

}  // namespace simt::host
