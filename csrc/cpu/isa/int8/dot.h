// Exact integer sums of products of four 8-bit codes per 32-bit lane, and the codes of packed weights as
// such.
//
// A lane is a column of the weight.  Its codes are unsigned with a zero point (kZero), except where signed
// bytes serve as well (`kSigned`); those of the activations are signed, -127 .. 127.
#pragma once
#include "cpu/isa/linear_codes.h"
#include "cpu/isa/linear_slice.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

INFERX_INLINE I splat_word(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
#if defined(__AVX512F__)
  return (I)_mm512_set1_epi32(word);
#elif defined(__AVX2__)
  return (I)_mm256_set1_epi32(word);
#elif defined(__x86_64__)
  return (I)_mm_set1_epi32(word);
#else
  return (I)vdupq_n_s32(word);
#endif
}

// a[0] b[0] + a[1] b[1] of the lane's two 16-bit halves, signed.
INFERX_INLINE I multiply_pairs(I a, I b) {
#if defined(__AVX512F__)
  return (I)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (I)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (I)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return (I)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#endif
}

// ---- Codes of weights ---------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
constexpr bool kSignedBytes = false;
#else
constexpr bool kSignedBytes = true;  // 8-bit codes stay signed: see Sum
#endif

// What is to be subtracted from the codes that code_words gives.
constexpr int code_zero(WeightFormat format) {
  const Codes kind = traits_of(format).codes;
  if (kind == Codes::c8) return kSignedBytes ? 0 : 128;
  if (kind == Codes::e2m1) return 12;
  return traits_of(format).zero;
}
// The largest code.
constexpr int code_max(Codes kind) {
  constexpr int most[] = {0, 0, 0, 15, 31, 63, 255, 24};
  return most[static_cast<int>(kind)];
}

// Codes 8c .. 8c + 7 of a group: the even ones and the odd ones.
struct CodeWords {
  I even, odd;
};

INFERX_INLINE I look_up_e2m1(I nibbles) {
#if defined(__x86_64__) && defined(__AVX2__)
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
#if defined(__AVX512F__)
  return (I)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)nibbles);
#else
  return (I)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)nibbles);
#endif
#else
  constexpr uint8_t table[] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  uint8_t bytes[sizeof(I)];
  std::memcpy(bytes, &nibbles, sizeof nibbles);
  for (auto& byte : bytes) byte = table[byte];
  return load<I>(bytes);
#endif
}

// words: this vector's columns of the group's first word.
template <Codes kind>
INFERX_INLINE CodeWords code_words(const uint32_t* words, int c) {
  constexpr uint32_t nibbles = 0x0f0f0f0f;
  if constexpr (kind == Codes::c8) {
    constexpr uint32_t flip = kSignedBytes ? 0 : 0x80808080;
    return {load_words(words, 2 * c) ^ flip, load_words(words, 2 * c + 1) ^ flip};
  }
  const I word = load_words(words, c);
  CodeWords codes = {word & nibbles, (word >> 4) & nibbles};
  if constexpr (kind == Codes::c5) {
    const I fifth = load_words(words, 4);  // even at bit 2c, odd at 2c + 1
    codes.even |= (c < 2 ? fifth << (4 - 2 * c) : fifth >> (2 * c - 4)) & 0x10101010;
    codes.odd |= (c < 2 ? fifth << (3 - 2 * c) : fifth >> (2 * c - 3)) & 0x10101010;
  }
  if constexpr (kind == Codes::c6) {
    const I upper = load_words(words, 4 + c / 2);  // even at bit 4 (c % 2), odd two further
    codes.even |= (c % 2 ? upper : upper << 4) & 0x30303030;
    codes.odd |= (c % 2 ? upper >> 2 : upper << 2) & 0x30303030;
  }
  if constexpr (kind == Codes::e2m1) codes = {look_up_e2m1(codes.even), look_up_e2m1(codes.odd)};
  return codes;
}

// Where the sum so far has to be there: GCC would move additions of integers behind all multiplications,
// whose results do not fit the registers.
INFERX_INLINE I added_now(I sum) {
#if defined(__x86_64__)
  asm("" : "+x"(sum));
#elif defined(__aarch64__)
  asm("" : "+w"(sum));
#endif
  return sum;
}

// ---- Sums ---------------------------------------------------------------------------------------------

// The sum of one unit.  Where there is no instruction for four products at once, pairs of them are added in
// 16 bits for as long as the largest codes cannot overflow those, and then widened.
template <Codes kind>
struct Sum {
  Sum() = default;
#if defined(__AVX512VNNI__)
  I total;
  INFERX_INLINE explicit Sum(I start) : total(start) {}
  INFERX_INLINE void add(const CodeWords& w, I even, I odd, int, int) {
    total = (I)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w.even, (__m512i)even);
    total = (I)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w.odd, (__m512i)odd);
  }
  INFERX_INLINE I value() const { return total; }
#elif defined(__AVX2__)
  static constexpr int kChunks = kind == Codes::c8 ? 0 : 32767 / (4 * 127 * code_max(kind));
  I total;
  I pairs;
  INFERX_INLINE explicit Sum(I start) : total(start), pairs(I{}) {}
  // c: the chunk; count: of the unit.
  INFERX_INLINE void add(const CodeWords& w, I even, I odd, int c, int count) {
    if constexpr (kind == Codes::c8) {
      total = added_now(total + widen(signed_pairs(w.even, even)) + widen(signed_pairs(w.odd, odd)));
      return;
    }
    const I sum = add16(multiply_bytes(w.even, even), multiply_bytes(w.odd, odd));
    pairs = added_now(c % kChunks == 0 ? sum : add16(pairs, sum));
    if (c % kChunks == kChunks - 1 || c == count - 1) total = added_now(total + widen(pairs));
  }
  INFERX_INLINE I value() const { return total; }

 private:
#if defined(__AVX512F__)
  static INFERX_INLINE I multiply_bytes(I u, I s) { return (I)_mm512_maddubs_epi16((__m512i)u, (__m512i)s); }
  static INFERX_INLINE I add16(I a, I b) { return (I)_mm512_add_epi16((__m512i)a, (__m512i)b); }
  static INFERX_INLINE I widen(I pairs16) { return multiply_pairs(pairs16, (I)_mm512_set1_epi16(1)); }
  // Both signed: |w| times x with w's sign; 2 * 128 * 127 fits 16 bits.
  static INFERX_INLINE I signed_pairs(I w, I x) {
    const __mmask64 negative = _mm512_movepi8_mask((__m512i)w);
    const __m512i turned = _mm512_mask_sub_epi8((__m512i)x, negative, _mm512_setzero_si512(), (__m512i)x);
    return (I)_mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)w), turned);
  }
#else
  static INFERX_INLINE I multiply_bytes(I u, I s) { return (I)_mm256_maddubs_epi16((__m256i)u, (__m256i)s); }
  static INFERX_INLINE I add16(I a, I b) { return (I)_mm256_add_epi16((__m256i)a, (__m256i)b); }
  static INFERX_INLINE I widen(I pairs16) { return multiply_pairs(pairs16, (I)_mm256_set1_epi16(1)); }
  static INFERX_INLINE I signed_pairs(I w, I x) {
    const __m256i turned = _mm256_sign_epi8((__m256i)x, (__m256i)w);
    return (I)_mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), turned);
  }
#endif
#else
  I total;
  INFERX_INLINE explicit Sum(I start) : total(start) {}
  INFERX_INLINE void add(const CodeWords& w, I even, I odd, int, int) {
    total = added_now(total + products(w.even, even) + products(w.odd, odd));
  }
  INFERX_INLINE I value() const { return total; }

 private:
  // Codes of weights are at most 63, or signed.
  static INFERX_INLINE I products(I w, I x) {
#if defined(__aarch64__)
    const int8x16_t a = (int8x16_t)w, b = (int8x16_t)x;
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return (I)vpaddlq_s16(vpaddq_s16(low, high));
#else
    typedef int16_t W __attribute__((vector_size(sizeof(I))));
    const I first = multiply_pairs((I)((W)(w << 8) >> 8), (I)((W)(x << 8) >> 8));  // bytes 0 and 2
    return first + multiply_pairs((I)((W)w >> 8), (I)((W)x >> 8));
#endif
  }
#endif
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
