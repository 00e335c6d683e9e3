// Atomics on shared and global memory, and fences, under CUDA's names and for CUDA's types.  All are relaxed:
// what one block writes for another needs __threadfence() before the atomic that announces it.
#pragma once
#include "simt/platform.h"
#include "simt/types.h"

#ifdef SIMT_CPU
#include <type_traits>

namespace simt::host {

void before_atomic(const void* p, size_t bytes, Site at);
void after_atomic(const void* p);
void thread_fence();

template <class T, class... Allowed>
constexpr bool is_one_of = (std::is_same_v<T, Allowed> || ...);

// *p becomes f(*p); returns what was there.
template <class T, class F>
SIMT_UNCHECKED T read_modify_write(T* p, F f, Site at) {
  using Bits =
      std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  before_atomic(p, sizeof(T), at);
  Bits* bits = reinterpret_cast<Bits*>(p);
  Bits before = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T old = bit_cast<T>(before);
    const Bits after = bit_cast<Bits>(static_cast<T>(f(old)));
    if (__atomic_compare_exchange_n(bits, &before, after, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
      after_atomic(p);
      return old;
    }
  }
}

}  // namespace simt::host

// The second parameter does not take part in deducing T, so that atomicAdd(&count, 1) works for unsigned.
#define SIMT_ATOMIC(name, expression, ...)                                                       \
  template <class T>                                                                             \
  T name(T* p, std::common_type_t<T> v, SIMT_AT) {                                               \
    static_assert(simt::host::is_one_of<T, __VA_ARGS__>, #name ": nvcc has none for this type"); \
    return simt::host::read_modify_write(p, [v](T old) { return expression; }, at);              \
  }
SIMT_ATOMIC(atomicAdd, old + v, int, unsigned, unsigned long long, float, double, __half, __half2,
            __nv_bfloat16, __nv_bfloat162)
SIMT_ATOMIC(atomicSub, old - v, int, unsigned)
SIMT_ATOMIC(atomicMax, old > v ? old : v, int, unsigned, long long, unsigned long long)
SIMT_ATOMIC(atomicMin, old < v ? old : v, int, unsigned, long long, unsigned long long)
SIMT_ATOMIC(atomicExch, (static_cast<void>(old), v), int, unsigned, unsigned long long, float)
SIMT_ATOMIC(atomicAnd, old& v, int, unsigned, unsigned long long)
SIMT_ATOMIC(atomicOr, old | v, int, unsigned, unsigned long long)
SIMT_ATOMIC(atomicXor, old ^ v, int, unsigned, unsigned long long)
SIMT_ATOMIC(atomicInc, old >= v ? 0u : old + 1u, unsigned)
SIMT_ATOMIC(atomicDec, old == 0u || old > v ? v : old - 1u, unsigned)
#undef SIMT_ATOMIC

template <class T>
T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> desired, SIMT_AT) {
  static_assert(simt::host::is_one_of<T, int, unsigned, unsigned long long, unsigned short>,
                "atomicCAS: nvcc has none for this type");
  return simt::host::read_modify_write(p, [=](T old) { return old == expected ? desired : old; }, at);
}

inline void __threadfence() { simt::host::thread_fence(); }
inline void __threadfence_system() { simt::host::thread_fence(); }
inline void __threadfence_block() {}

#endif
