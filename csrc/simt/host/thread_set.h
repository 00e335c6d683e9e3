// A set of threads of a block, one lane mask a warp.
#pragma once
#include <cstdint>

namespace simt::host {

constexpr int kMaxThreads = 1024, kLanes = 32, kMaxWarps = kMaxThreads / kLanes;

struct ThreadSet {
  uint32_t lanes[kMaxWarps] = {};

  void add(int warp, int lane) { lanes[warp] |= 1u << lane; }
  bool has(int warp, int lane) const { return lanes[warp] >> lane & 1; }
  void clear() { *this = {}; }
};

}  // namespace simt::host
