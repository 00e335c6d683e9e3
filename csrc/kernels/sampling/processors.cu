// One CTA a row; the steps stand in the row's order, with a barrier between any two that may touch one logit.
#include <cmath>

#include "kernels/sampling.h"
#include "sampling_math.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;
using namespace sampling;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// The part of a list that is row r's, within bounds whatever the offsets are.
struct Span {
  int64_t begin, end;
};
SIMT_DEV Span span_of(const RaggedIds& list, int64_t r) {
  if (!list.offsets) return {0, 0};
  const auto clamp = [&](int64_t i) { return i < 0 ? 0 : i < list.count ? i : list.count; };
  return {clamp(list.offsets[r]), clamp(list.offsets[r + 1])};
}

template <class Body>
SIMT_DEV void for_each_id(const RaggedIds& list, int64_t r, int64_t num_ids, const Body& body) {
  const Span span = span_of(list, r);
  for (int64_t i = span.begin + threadIdx.x; i < span.end; i += kThreads) {
    const int64_t id = list.ids[i];
    if (id >= 0 && id < num_ids) body(id, i);
  }
}

// -inf for what lies between two neighbours of the sorted list, a gap a warp.
SIMT_DEV void mask_all_but(const RaggedIds& allowed, int64_t r, int64_t num_ids, float* x) {
  const Span span = span_of(allowed, r);
  if (span.begin >= span.end) return;
  const auto clamp = [&](int64_t id) { return id < 0 ? 0 : id < num_ids ? id : num_ids; };
  for (int64_t gap = span.begin + threadIdx.x / 32; gap <= span.end; gap += kWarps) {
    const int64_t from = gap > span.begin ? clamp(int64_t{allowed.ids[gap - 1]} + 1) : 0;
    const int64_t to = gap < span.end ? clamp(allowed.ids[gap]) : num_ids;
    for (int64_t i = from + lane_id(); i < to; i += 32) x[i] = -INFINITY;
  }
}

__global__ void __launch_bounds__(kThreads)
    apply_logits_processors_kernel(const __grid_constant__ ProcessorParams p) {
  const int64_t r = blockIdx.x, n = p.num_ids;
  float* x = static_cast<float*>(p.logits.data) + r * p.logits.row_stride;
  mask_all_but(p.allowed, r, n, x);
  __syncthreads();
  for_each_id(p.banned, r, n, [&](int64_t id, int64_t) { x[id] = -INFINITY; });
  __syncthreads();
  for_each_id(p.biased, r, n, [&](int64_t id, int64_t i) { x[id] += p.bias[i]; });
  __syncthreads();
  for_each_id(p.seen, r, n, [&](int64_t id, int64_t i) {
    x[id] = penalised(x[id], p.seen_count[i], p.repetition[r], p.frequency[r], p.presence[r]);
  });
}

}  // namespace

Error launch_apply_logits_processors(const ProcessorParams& p, void* stream) {
  if (p.logits.rows == 0) return kSuccess;
  return launch(apply_logits_processors_kernel, dim3(static_cast<unsigned>(p.logits.rows)), dim3(kThreads), 0,
                stream, p);
}

}  // namespace inferx::cuda
