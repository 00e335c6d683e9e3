// Shuffles, votes, matches and reductions of a warp.  All lanes of the mask have to come to the same line
// with the same mask; none of them may have left the kernel.  None but __syncwarp orders memory.
#pragma once
#include "simt/platform.h"

#ifdef SIMT_CPU

namespace simt::host {

enum class Shuffle { index, up, down, exclusive_or };
struct ShuffleSlot {
  uint64_t in, out;
  Shuffle kind;
  int argument, width;
};
void shuffle(unsigned mask, ShuffleSlot& slot, Site at);
void sync_warp(unsigned mask, Site at);
unsigned ballot(unsigned mask, bool predicate, Site at);
unsigned match_any(unsigned mask, uint64_t value, Site at);
unsigned match_all(unsigned mask, uint64_t value, int* all_equal, Site at);
unsigned active_mask();
enum class Reduce { add, min, max, min_signed, max_signed, and_, or_, xor_ };
unsigned reduce(unsigned mask, unsigned value, Reduce kind, Site at);

template <class T>
T shuffle(Shuffle kind, unsigned mask, T value, int argument, int width, Site at) {
  static_assert(sizeof(T) <= 8, "shuffles move 4 or 8 bytes");
  ShuffleSlot slot{0, 0, kind, argument, width};
  memcpy(&slot.in, &value, sizeof(T));
  shuffle(mask, slot, at);
  memcpy(static_cast<void*>(&value), &slot.out, sizeof(T));
  return value;
}
template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "matches compare 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

}  // namespace simt::host

inline void __syncwarp(unsigned mask = ~0u, SIMT_AT) { simt::host::sync_warp(mask, at); }
inline unsigned __activemask() { return simt::host::active_mask(); }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_AT) {
  return simt::host::shuffle(simt::host::Shuffle::index, mask, value, lane, width, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_AT) {
  return simt::host::shuffle(simt::host::Shuffle::up, mask, value, static_cast<int>(delta), width, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_AT) {
  return simt::host::shuffle(simt::host::Shuffle::down, mask, value, static_cast<int>(delta), width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SIMT_AT) {
  return simt::host::shuffle(simt::host::Shuffle::exclusive_or, mask, value, lanes, width, at);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_AT) {
  return simt::host::ballot(mask, predicate != 0, at);
}
inline int __any_sync(unsigned mask, int predicate, SIMT_AT) {
  return simt::host::ballot(mask, predicate != 0, at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, SIMT_AT) {
  return simt::host::ballot(mask, predicate == 0, at) == 0;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value, SIMT_AT) {
  return simt::host::match_any(mask, simt::host::to_bits(value), at);
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all_equal, SIMT_AT) {
  return simt::host::match_all(mask, simt::host::to_bits(value), all_equal, at);
}

// redux.sync, sm_80
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::add, at);
}
inline int __reduce_add_sync(unsigned mask, int value, SIMT_AT) {
  return static_cast<int>(
      simt::host::reduce(mask, static_cast<unsigned>(value), simt::host::Reduce::add, at));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::min, at);
}
inline int __reduce_min_sync(unsigned mask, int value, SIMT_AT) {
  return static_cast<int>(
      simt::host::reduce(mask, static_cast<unsigned>(value), simt::host::Reduce::min_signed, at));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::max, at);
}
inline int __reduce_max_sync(unsigned mask, int value, SIMT_AT) {
  return static_cast<int>(
      simt::host::reduce(mask, static_cast<unsigned>(value), simt::host::Reduce::max_signed, at));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::and_, at);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::or_, at);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value, SIMT_AT) {
  return simt::host::reduce(mask, value, simt::host::Reduce::xor_, at);
}

#endif

namespace simt {

// Over groups of `Width` neighbouring lanes (all lanes take part); every lane gets the result.  The order of
// additions is the same for every lane and every call.
template <int Width = 32>
SIMT_DEV float warp_sum(float value SIMT_ATP) {
  for (int lanes = Width / 2; lanes > 0; lanes /= 2)
    value += __shfl_xor_sync(~0u, value, lanes, 32 SIMT_PASS);
  return value;
}
template <int Width = 32>
SIMT_DEV float warp_max(float value SIMT_ATP) {
  for (int lanes = Width / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, lanes, 32 SIMT_PASS));
  return value;
}

}  // namespace simt
