#include "cpu/sampling.h"

#include "cpu/isa/dispatch_dtype.h"
#include "cpu/isa/vec.h"
#include "sampling_math.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

using sampling::weight_of;

void to_float(DType dtype, float* out, const void* x, int64_t n) {
  dispatch_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_vector(n, [&](int64_t i, int64_t count) {
      store(out + i, load(static_cast<const T*>(x) + i, count), count);
    });
  });
}

constexpr int64_t kChunk = 4096;  // of which the largest is known before its place is looked for

RowMaximum maximum(const float* x, int64_t n) {
  const float minus_inf = -__builtin_inff();
  RowMaximum best{minus_inf, 0, false};
  for (int64_t start = 0; start < n; start += kChunk) {
    const int64_t end = start + kChunk < n ? start + kChunk : n;
    F tops[4] = {splat(minus_inf), splat(minus_inf), splat(minus_inf), splat(minus_inf)};
    I nans = {};
    int64_t i = start;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (int k = 0; k < 4; ++k) {
        const F v = load(x + i + k * kLanes);
        nans |= v != v;
        tops[k] = select(v > tops[k], v, tops[k]);
      }
    }
    float top = minus_inf;
    int nan = 0;
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < kLanes; ++l) top = tops[k][l] > top ? tops[k][l] : top;
    }
    for (int l = 0; l < kLanes; ++l) nan |= nans[l];
    for (; i < end; ++i) {
      nan |= x[i] != x[i];
      top = x[i] > top ? x[i] : top;
    }
    if (nan) return {top, 0, true};
    if (top > best.value) best = {top, start, false};  // the chunk only; its place in it is found below
  }
  while (best.index < n && x[best.index] != best.value) ++best.index;
  return best;
}

// The loops below are written for the compiler's own vectoriser: weight_of is a straight line of
// operations, and integers may be added in any order.
int64_t total(const float* x, int64_t n, float max, float scale, int64_t least) {
  int64_t sum = 0;
  if (least <= 1) {
    for (int64_t i = 0; i < n; ++i) sum += weight_of((x[i] - max) * scale);
    return sum;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t w = weight_of((x[i] - max) * scale);
    sum += w >= least ? w : 0;
  }
  return sum;
}

void weights(int64_t* out, const float* x, int64_t n, float max, float scale, int64_t least) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t w = weight_of((x[i] - max) * scale);
    out[i] = w >= least ? w : 0;
  }
}

// Appends to `ids` those of the kLanes elements from i on whose lane of `mask` is -1.
inline int64_t append(int32_t* ids, I mask, int32_t first) {
#if defined(__AVX512F__)
  const __mmask16 kept = _mm512_movepi32_mask((__m512i)mask);
  if (!kept) return 0;
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i packed = _mm512_maskz_compress_epi32(kept, _mm512_add_epi32(lane, _mm512_set1_epi32(first)));
  _mm512_storeu_si512(ids, packed);  // compressing into memory is many times slower on some machines
  return __builtin_popcount(kept);
#else
#if defined(__AVX2__)
  int kept = _mm256_movemask_ps((__m256)mask);
#elif defined(__x86_64__)
  int kept = _mm_movemask_ps((__m128)mask);
#else
  int kept = 0;
  for (int l = 0; l < kLanes; ++l) kept |= (mask[l] & 1) << l;
#endif
  int64_t count = 0;
  for (; kept; kept &= kept - 1) ids[count++] = first + __builtin_ctz(static_cast<unsigned>(kept));
  return count;
#endif
}

template <class Keep>
inline int64_t collect_where(int32_t* ids, const float* x, int64_t n, int32_t first, const Keep& keep) {
  int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    count += append(ids + count, keep(load(x + i)), first + static_cast<int32_t>(i));
  }
  if (i < n) {
    I mask = keep(load(x + i, n - i));
    for (int l = 0; l < kLanes; ++l) mask[l] = i + l < n ? mask[l] : 0;
    count += append(ids + count, mask, first + static_cast<int32_t>(i));
  }
  return count;
}

int64_t collect(int32_t* ids, const float* x, int64_t n, float max, float scale, float least_z,
                int32_t first) {
  return collect_where(ids, x, n, first,
                       [&](F v) -> I { return (v - splat(max)) * splat(scale) >= splat(least_z); });
}

int64_t collect_above(int32_t* ids, const float* x, int64_t n, float limit, int32_t first) {
  return collect_where(ids, x, n, first, [&](F v) -> I { return v > splat(limit); });
}

void bins(int32_t* out, const float* x, int64_t n, float half_max, float bins_per, int32_t count) {
  const float last = static_cast<float>(count - 1);
  for (int64_t i = 0; i < n; ++i) {
    const float bin = (half_max - x[i] * 0.5f) * bins_per;
    out[i] = static_cast<int32_t>(bin < last ? bin : last);
  }
}

int64_t count_above(const float* x, int64_t n, float limit) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] > limit;
  return count;
}

}  // namespace

const SamplingKernels sampling_kernels = {to_float, maximum,       total, weights,
                                          collect,  collect_above, bins,  count_above};

}  // namespace inferx::cpu::INFERX_ISA
