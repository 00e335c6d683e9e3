#include "simt/ldmatrix.h"

#include <algorithm>
#include <cstring>

#include "simt/host/block.h"
#include "simt/host/error.h"

namespace simt::host {

namespace {

struct Slot {
  void* row;
  uint32_t* load;  // registers of ldmatrix, or
  const uint32_t* store;
};

const Slot& slot_of(void* const* slots, int lane) { return *static_cast<const Slot*>(slots[lane]); }

// Cycles beyond the first that reading or writing these eight rows of 16 bytes costs: rows that begin in the
// same 16 of a line's 128 bytes (the 32 banks) follow one another; one row named twice counts once.
uint64_t extra_cycles(void* const* slots, int first_lane) {
  int rows[8] = {}, most = 1;
  for (int i = 0; i < 8; ++i) {
    const void* row = slot_of(slots, first_lane + i).row;
    bool again = false;
    for (int k = 0; k < i; ++k) again |= slot_of(slots, first_lane + k).row == row;
    if (!again) most = std::max(most, ++rows[reinterpret_cast<uintptr_t>(row) / 16 % 8]);
  }
  return static_cast<uint64_t>(most - 1);
}

// Lane l holds elements (r, c) and (r, c+1), of the transposed matrix (c, r) and (c+1, r).
template <int Matrices, bool Transposed>
void load(Block& block, int, void* const* slots, unsigned mask, Site at) {
  if (mask != ~0u) fail(at, "ldmatrix needs all 32 lanes of the warp, not 0x%08x", mask);
  for (int m = 0; m < Matrices; ++m) {
    const auto row = [&](int i) { return static_cast<const uint16_t*>(slot_of(slots, 8 * m + i).row); };
    for (int lane = 0; lane < 32; ++lane) {
      const int r = lane / 4, c = lane % 4 * 2;
      const uint32_t low = Transposed ? row(c)[r] : row(r)[c];
      const uint32_t high = Transposed ? row(c + 1)[r] : row(r)[c + 1];
      slot_of(slots, lane).load[m] = low | high << 16;
    }
    block.count[k_ldmatrix_extra] += extra_cycles(slots, 8 * m);
  }
  ++block.count[k_ldmatrix];
}

template <int Matrices, bool Transposed>
void store(Block& block, int, void* const* slots, unsigned mask, Site at) {
  if (mask != ~0u) fail(at, "stmatrix needs all 32 lanes of the warp, not 0x%08x", mask);
  for (int m = 0; m < Matrices; ++m) {
    const auto row = [&](int i) { return static_cast<uint16_t*>(slot_of(slots, 8 * m + i).row); };
    for (int lane = 0; lane < 32; ++lane) {
      const int r = lane / 4, c = lane % 4 * 2;
      const uint32_t pair = slot_of(slots, lane).store[m];
      (Transposed ? row(c)[r] : row(r)[c]) = static_cast<uint16_t>(pair);
      (Transposed ? row(c + 1)[r] : row(r)[c + 1]) = static_cast<uint16_t>(pair >> 16);
    }
    block.count[k_stmatrix_extra] += extra_cycles(slots, 8 * m);
  }
  ++block.count[k_stmatrix];
}

struct Op {
  const char* name;
  Finish finish;
};

// Only the first 8 * matrices lanes' rows are used.
void check_row(const char* op, const void* row, int matrices, unsigned flags, Site at) {
  if (current->lane >= 8 * matrices) return;
  if (shared_offset(row, at) % 16 != 0) fail(at, "%s: the row's address is not 16-byte aligned", op);
  access_shared(row, 16, flags, at);
}

}  // namespace

void ldmatrix(uint32_t* regs, int matrices, const void* row, bool transposed, Site at) {
  static constexpr Op kOps[3][2] = {{{"ldmatrix_x1", load<1, false>}, {"ldmatrix_x1_trans", load<1, true>}},
                                    {{"ldmatrix_x2", load<2, false>}, {"ldmatrix_x2_trans", load<2, true>}},
                                    {{"ldmatrix_x4", load<4, false>}, {"ldmatrix_x4_trans", load<4, true>}}};
  const Op& op = kOps[matrices / 2][transposed];
  check_row(op.name, row, matrices, kRead, at);
  Slot slot{const_cast<void*>(row), regs, nullptr};
  warp_op(~0u, op.name, &slot, op.finish, at);
}

void stmatrix(void* row, const uint32_t* regs, int matrices, bool transposed, Site at) {
  static constexpr Op kOps[3][2] = {
      {{"stmatrix_x1", store<1, false>}, {"stmatrix_x1_trans", store<1, true>}},
      {{"stmatrix_x2", store<2, false>}, {"stmatrix_x2_trans", store<2, true>}},
      {{"stmatrix_x4", store<4, false>}, {"stmatrix_x4_trans", store<4, true>}}};
  const Op& op = kOps[matrices / 2][transposed];
  check_row(op.name, row, matrices, kWrite, at);
  Slot slot{row, nullptr, regs};
  warp_op(~0u, op.name, &slot, op.finish, at);
}

}  // namespace simt::host
