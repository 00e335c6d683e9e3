// Sampling one row on the CPU: see sampling_row.cpp.
#pragma once
#include <cstdint>
#include <vector>

#include "cpu/sampling.h"

namespace inferx::cpu {

// What a row's options come to.
struct RowOptions {
  float scale;    // 1 / temperature
  int64_t top_k;  // 0: off
  double top_p;   // 1: off
  int64_t least;  // the least weight that stays
  uint64_t random;
};

// Memory that a thread keeps from row to row.
class RowSampler {
 public:
  explicit RowSampler(const SamplingKernels& kernels) : kernels_(kernels) {}

  // A token of x[0..n), whose maximum is finite and known.
  int64_t draw(const float* x, int64_t n, float max, const RowOptions& options);
  // The orders (sampling_math.h) of the k largest, -inf left out, in order.
  const std::vector<uint64_t>& largest(const float* x, int64_t n, int64_t k);
  // x as float32, in this object's memory unless it is that already.
  const float* as_float(DType dtype, const void* x, int64_t n);

 private:
  int64_t draw_from_all(const float* x, int64_t n, float max, const RowOptions& options);
  int64_t draw_from_few(const float* x, int64_t n, float max, const RowOptions& options);
  int64_t draw_from_candidates(uint64_t random) const;
  void collect(const float* x, int64_t n, float max, float least_z, const RowOptions& options);
  void take_largest(const float* x, int64_t n, int64_t k);
  void keep_prefix(float max, int64_t limit, const int64_t* cost);

  const SamplingKernels& kernels_;
  std::vector<float> row_;
  std::vector<uint64_t> orders_;
  // The candidates of a draw, by rising id.
  std::vector<int32_t> ids_;
  std::vector<float> values_;
  std::vector<int64_t> weights_;
  std::vector<int32_t> bins_;
};

}  // namespace inferx::cpu
