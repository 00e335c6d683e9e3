// Division by a number known before the launch, as a multiplication and a shift.
#pragma once
#include "rows.h"

namespace inferx::cuda {

// Method: Granlund and Montgomery, "Division by invariant integers using multiplication" (1994).  With
// m = ceil(2^(31 + l) / d), l = ceil(log2 d), m d exceeds 2^(31 + l) by less than 2^l, so the quotient is
// exact for n < 2^31; m fits 32 bits.
class FastDiv {
 public:
  FastDiv() = default;
  explicit FastDiv(uint32_t divisor) : divisor_(divisor) {
    while ((uint64_t{1} << (shift_ - 31)) < divisor) ++shift_;
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + divisor - 1) / divisor);
  }
  // n < 2^31
  INFERX_HOST_DEVICE uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier_) >> shift_);
  }
  INFERX_HOST_DEVICE uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_ = 1, multiplier_ = 1u << 31, shift_ = 31;
};

}  // namespace inferx::cuda
