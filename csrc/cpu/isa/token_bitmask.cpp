#include "cpu/token_bitmask.h"

#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Elements stay what they are, bit for bit, so they are integers here: kLanes of 32 or of 16 bits.
constexpr int kWordBits = 32;
static_assert(kWordBits % kLanes == 0 && kLanes <= 16, "a lane of H holds the bits of a vector");

struct Wide {
  using Vector = U;
  using Element = uint32_t;
};
struct Narrow {
  using Vector = H;
  using Element = uint16_t;
};

template <class Type>
inline typename Type::Vector lane_bits() {
  typename Type::Vector bits = {};
  for (int l = 0; l < kLanes; ++l) bits[l] = static_cast<typename Type::Element>(1u << l);
  return bits;
}

// x[0..31] by the bits of one word.
template <class Type>
inline void mask_word(typename Type::Element* x, uint32_t word, typename Type::Element minus_inf) {
  using V = typename Type::Vector;
  using Element = typename Type::Element;
  if (word == ~0u) return;
  const V none = minus_inf - V{};
  for (int i = 0; i < kWordBits; i += kLanes) {
    V result = none;
    if (word != 0) {
      V old;
      std::memcpy(&old, x + i, sizeof old);
      const V bits = (static_cast<Element>(word >> i) - V{}) & lane_bits<Type>();
      result = bits != 0 ? old : none;
    }
    std::memcpy(x + i, &result, sizeof result);
  }
}

template <class Type>
inline void mask_elements(void* data, int64_t n, const uint32_t* mask, int64_t words,
                          typename Type::Element minus_inf) {
  auto* x = static_cast<typename Type::Element*>(data);
  const int64_t whole = n / kWordBits;
  const int64_t given = words < whole ? words : whole;
  int64_t w = 0;
  for (; w < given; ++w) mask_word<Type>(x + w * kWordBits, mask[w], minus_inf);
  for (; w < whole; ++w) mask_word<Type>(x + w * kWordBits, 0, minus_inf);
  const uint32_t last = whole < words ? mask[whole] : 0;
  for (int64_t i = whole * kWordBits; i < n; ++i) {
    if (!(last >> (i % kWordBits) & 1)) x[i] = minus_inf;
  }
}

void mask_row(DType dtype, void* x, int64_t n, const uint32_t* mask, int64_t words) {
  if (dtype == DType::f32) return mask_elements<Wide>(x, n, mask, words, 0xff800000u);
  mask_elements<Narrow>(x, n, mask, words, dtype == DType::f16 ? 0xfc00u : 0xff80u);
}

}  // namespace

const TokenBitmaskKernels token_bitmask_kernels = {mask_row};

}  // namespace inferx::cpu::INFERX_ISA
