// N elements of T that move in as few accesses as alignment allows: 16 bytes at a time, or all N at once.
#pragma once
#include <type_traits>

#include "simt/simt.h"

namespace inferx::cuda {

template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Packed {
  static constexpr int kBytes = N * sizeof(T);
  static_assert((N & (N - 1)) == 0, "a power of two");
  T at[N];
};

// The integer of so many bytes.
template <int kBytes>
using Word = std::conditional_t<
    kBytes == 8, uint2,
    std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;

// `from` is aligned as Packed<T, N> is.
template <int N, class T>
SIMT_DEV Packed<T, N> load_packed(const T* from SIMT_ATP) {
  using namespace simt;
  using P = Packed<T, N>;
  P result;
  if constexpr (P::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < P::kBytes / 16; ++i) {
      const uint4 word = ld16(reinterpret_cast<const uint4*>(from) + i SIMT_PASS);
      memcpy(reinterpret_cast<char*>(&result) + 16 * i, &word, 16);
    }
  } else {
    const auto word = load_vector<Word<P::kBytes>>(from SIMT_PASS);
    memcpy(&result, &word, P::kBytes);
  }
  return result;
}

template <int N, class T>
SIMT_DEV void store_packed(T* to, const Packed<T, N>& value SIMT_ATP) {
  using namespace simt;
  using P = Packed<T, N>;
  if constexpr (P::kBytes >= 16) {
#pragma unroll
    for (int i = 0; i < P::kBytes / 16; ++i) {
      uint4 word;
      memcpy(&word, reinterpret_cast<const char*>(&value) + 16 * i, 16);
      st16(reinterpret_cast<uint4*>(to) + i, word SIMT_PASS);
    }
  } else {
    Word<P::kBytes> word;
    memcpy(&word, &value, P::kBytes);
    store_vector(to, word SIMT_PASS);
  }
}

}  // namespace inferx::cuda
