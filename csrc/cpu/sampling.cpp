#include "cpu/sampling.h"

#include <cmath>
#include <limits>

#include "cpu/parallel.h"
#include "cpu/sampling_row.h"
#include "sampling_math.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(SamplingKernels, sampling_kernels)

using namespace sampling;

namespace {

constexpr int64_t kElementsPerThread = 16384;  // some microseconds of work

RowSampler& sampler() {
  static thread_local RowSampler kept(sampling_kernels());
  return kept;
}

const float* row_of(const Logits& logits, int64_t row) {
  const auto* start = static_cast<const char*>(logits.data) +
                      row * logits.row_stride * static_cast<int64_t>(dtype_size(logits.dtype));
  return sampler().as_float(logits.dtype, start, logits.vocab);
}

int32_t sample_row(const SampleParams& p, int64_t row) {
  const SamplingKernels& kernels = sampling_kernels();
  const float* x = row_of(p.logits, row);
  RowMaximum best = kernels.maximum(x, p.logits.vocab);
  p.token_ids[row] = 0;
  if (best.nan) return kNan;
  if (best.value == -INFINITY) return kAllMinusInf;
  if (best.index >= p.num_ids) best = kernels.maximum(x, p.num_ids);
  if (best.value == -INFINITY) return kNoLegalToken;
  const float temperature = p.temperature ? p.temperature[row] : 1.0f;
  if (!(temperature > 0) || best.value == INFINITY) {
    p.token_ids[row] = best.index;
    return kOk;
  }
  const auto at = [&](const auto* values) { return values ? values[row] : 0; };
  const RowOptions options{inverse_temperature(temperature), at(p.top_k),
                           p.top_p ? clamp_top_p(p.top_p[row]) : 1.0, least_weight(at(p.min_p)),
                           token_bits(at(p.seed), at(p.step), static_cast<uint32_t>(at(p.index)))};
  p.token_ids[row] = sampler().draw(x, p.num_ids, best.value, options);
  return kOk;
}

// body(id, position) for the ids of a row's list that are within [0, num_ids).
template <class Body>
void for_each_id(const RaggedIds& list, int64_t row, int64_t num_ids, const Body& body) {
  if (!list.offsets) return;
  const int64_t end = std::min(list.offsets[row + 1], list.count);
  for (int64_t i = std::max<int64_t>(list.offsets[row], 0); i < end; ++i) {
    const int64_t id = list.ids[i];
    if (id >= 0 && id < num_ids) body(id, i);
  }
}

void process_row(const ProcessorParams& p, int64_t row) {
  float* x = static_cast<float*>(p.logits.data) + row * p.logits.row_stride;
  const auto each = [&](const RaggedIds& list, const auto& body) { for_each_id(list, row, p.num_ids, body); };
  if (p.allowed.offsets && p.allowed.offsets[row] < p.allowed.offsets[row + 1]) {
    int64_t next = 0;
    each(p.allowed, [&](int64_t id, int64_t) {
      while (next < id) x[next++] = -INFINITY;
      next = id + 1;
    });
    while (next < p.num_ids) x[next++] = -INFINITY;
  }
  each(p.banned, [&](int64_t id, int64_t) { x[id] = -INFINITY; });
  each(p.biased, [&](int64_t id, int64_t i) { x[id] += p.bias[i]; });
  each(p.seen, [&](int64_t id, int64_t i) {
    x[id] = penalised(x[id], p.seen_count[i], p.repetition[row], p.frequency[row], p.presence[row]);
  });
}

void logprob_row(const LogprobParams& p, int64_t n) {
  const SamplingKernels& kernels = sampling_kernels();
  const int64_t row = p.rows ? p.rows[n] : n, vocab = p.logits.vocab, token = p.token_ids[n];
  int64_t* ids = p.ids + n * (1 + p.num_top);
  double* logprobs = p.logprobs + n * (1 + p.num_top);
  ids[0] = token;
  p.ranks[n] = 0;
  for (int64_t i = 0; i <= p.num_top; ++i) {
    if (i > 0) ids[i] = i - 1;
    logprobs[i] = std::numeric_limits<double>::quiet_NaN();
  }
  if (row < 0 || row >= p.logits.rows) return;
  const float* x = row_of(p.logits, row);
  const RowMaximum best = kernels.maximum(x, vocab);
  if (best.nan || best.value == -INFINITY) return;
  const int64_t total = std::isinf(best.value) ? 1 : kernels.total(x, vocab, best.value, 1.0f, 1);
  if (token >= 0 && token < vocab) {
    logprobs[0] = logprob_of(x[token], best.value, total);
    p.ranks[n] = 1 + kernels.count_above(x, p.num_ids, x[token]);
  }
  const auto& largest = sampler().largest(x, p.num_ids, p.num_top);
  int64_t i = 1;
  for (uint64_t order : largest) {
    ids[i] = order_id(order);
    logprobs[i++] = logprob_of(order_value(order), best.value, total);
  }
  // What is left of the places goes to the -inf, by rising id.
  for (int64_t id = 0; i <= p.num_top && id < p.num_ids; ++id) {
    if (x[id] != -INFINITY) continue;
    ids[i] = id;
    logprobs[i++] = -INFINITY;
  }
}

template <class Body>
void for_each_row(int64_t rows, int64_t width, const Body& body) {
  parallel_for(rows, kElementsPerThread / (width + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void sample_tokens(const SampleParams& p) {
  for_each_row(p.logits.rows, p.logits.vocab, [&](int64_t row) { p.status[row] = sample_row(p, row); });
}

void apply_logits_processors(const ProcessorParams& p) {
  for_each_row(p.logits.rows, p.num_ids, [&](int64_t row) { process_row(p, row); });
}

void token_logprobs(const LogprobParams& p) {
  for_each_row(p.count, p.logits.vocab, [&](int64_t n) { logprob_row(p, n); });
}

}  // namespace inferx::cpu
