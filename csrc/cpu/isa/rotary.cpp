#include "cpu/rotary.h"

#include "cpu/isa/dispatch_dtype.h"
#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// (a, b) turned by the angle: two rounded products and a sum each, as transformers' q * cos + rotate_half(q)
// * sin gives in float32, so that both agree bit for bit.
inline F turned_first(F a, F b, F cos, F sin) { return a * cos - b * sin; }
inline F turned_second(F a, F b, F cos, F sin) { return b * cos + a * sin; }

template <class T>
void rotate_neox(T* x, const float* cos, const float* sin, int64_t half) {
  for_each_vector(half, [&](int64_t i, int64_t count) {
    const F a = load(x + i, count), b = load(x + half + i, count);
    const F c = load(cos + i, count), s = load(sin + i, count);
    store(x + i, turned_first(a, b, c, s), count);
    store(x + half + i, turned_second(a, b, c, s), count);
  });
}

template <class T>
void rotate_interleaved(T* x, const float* cos, const float* sin, int64_t half) {
  for_each_vector(half, [&](int64_t i, int64_t count) {
    T pairs[2 * kLanes] = {}, first[kLanes], second[kLanes];
    const size_t bytes = 2 * count * sizeof(T);
    std::memcpy(pairs, x + 2 * i, bytes);
    for (int k = 0; k < kLanes; ++k) {
      first[k] = pairs[2 * k];
      second[k] = pairs[2 * k + 1];
    }
    const F a = load(first), b = load(second);
    const F c = load(cos + i, count), s = load(sin + i, count);
    store(first, turned_first(a, b, c, s));
    store(second, turned_second(a, b, c, s));
    for (int k = 0; k < kLanes; ++k) {
      pairs[2 * k] = first[k];
      pairs[2 * k + 1] = second[k];
    }
    std::memcpy(x + 2 * i, pairs, bytes);
  });
}

void rotate_heads(DType dtype, void* x, int64_t heads, int64_t head_stride, const float* cos,
                  const float* sin, int64_t rot_dim, bool is_neox) {
  dispatch_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for (int64_t head = 0; head < heads; ++head) {
      T* vector = static_cast<T*>(x) + head * head_stride;
      if (is_neox) {
        rotate_neox(vector, cos, sin, rot_dim / 2);
      } else {
        rotate_interleaved(vector, cos, sin, rot_dim / 2);
      }
    }
  });
}

}  // namespace

const RotaryKernels rotary_kernels = {rotate_heads};

}  // namespace inferx::cpu::INFERX_ISA
