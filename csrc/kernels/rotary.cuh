// What the rotary kernels share: N neighbouring pairs of one head, turned in registers.
//
//   const float* cos = rotary_row(table, stride, rows, position);   // null: leave the token as it is
//   const RotaryOffsets at = rotary_offsets<N>(pair, half, is_neox);
//   auto lo = load_packed<N>(x + at.lo), hi = load_packed<N>(x + at.hi);
//   rotate(lo, hi, load_packed<N>(cos + pair), load_packed<N>(cos + half + pair), is_neox);
//
// Pair i is (i, i + half) when is_neox, else (2 i, 2 i + 1).  N divides half and the first pair; where N is
// more than 1, x, its strides and the table are aligned accordingly.
#pragma once
#include "kernels/dtype_dispatch.h"
#include "kernels/packed.cuh"

namespace inferx::cuda {

// The cosines of a position, followed by as many sines; null for a position that the table does not have.
SIMT_DEV const float* rotary_row(const float* table, int64_t stride, int64_t rows, int64_t position) {
  return position >= 0 && position < rows ? table + position * stride : nullptr;
}

// Where the two vectors lie that hold pairs [pair, pair + N), in elements from the head's start.
struct RotaryOffsets {
  int64_t lo, hi;
};
template <int N>
SIMT_DEV RotaryOffsets rotary_offsets(int64_t pair, int64_t half, bool is_neox) {
  if (is_neox) return {pair, half + pair};
  return {2 * pair, 2 * pair + N};
}

// Two rounded products and a sum each, never fused: the bits of the CPU op.
template <class T>
SIMT_DEV void rotate_pair(T& first, T& second, float cos, float sin) {
  const float a = to_float(first), b = to_float(second);
  first = from_float<T>(a * cos - b * sin);
  second = from_float<T>(b * cos + a * sin);
}

template <class T, int N>
SIMT_DEV void rotate(Packed<T, N>& lo, Packed<T, N>& hi, const Packed<float, N>& cos,
                     const Packed<float, N>& sin, bool is_neox) {
  if (N == 1 || is_neox) {
#pragma unroll
    for (int i = 0; i < N; ++i) rotate_pair(lo.at[i], hi.at[i], cos.at[i], sin.at[i]);
    return;
  }
  if constexpr (N > 1) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      rotate_pair(lo.at[2 * i], lo.at[2 * i + 1], cos.at[i], sin.at[i]);
      rotate_pair(hi.at[2 * i], hi.at[2 * i + 1], cos.at[N / 2 + i], sin.at[N / 2 + i]);
    }
  }
}

}  // namespace inferx::cuda
