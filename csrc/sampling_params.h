// The arguments of the sampling ops, the same for the CPU and the device.  ops/sampling.py says what they do.
#pragma once
#include <cstdint>

#include "dtype.h"

namespace inferx::sampling {

// Why a row has no token; ops/sampling.py has the same numbers.
enum Status : int32_t { kOk = 0, kNan = 1, kAllMinusInf = 2, kNoLegalToken = 3 };

// Rows of logits; the last dimension is contiguous.
struct Logits {
  void* data;
  DType dtype;
  int64_t rows, vocab, row_stride;  // in elements
};

// Null pointers stand for: temperature 1, top_k and top_p and min_p off, seed, step and index 0.
struct SampleParams {
  int64_t* token_ids;
  int32_t* status;
  Logits logits;
  int64_t num_ids;
  const float* temperature;
  const int32_t* top_k;
  const double* top_p;
  const double* min_p;
  const int64_t* seed;
  const int64_t* step;
  const int64_t* index;
};

// Lists of ids, one per row: those of row r are ids[offsets[r]] to ids[offsets[r + 1]], within [0, count).
// offsets is null where no row has any.
struct RaggedIds {
  const int64_t* offsets;
  const int32_t* ids;
  int64_t count;
};

struct ProcessorParams {
  Logits logits;  // float32, changed in place
  int64_t num_ids;
  RaggedIds allowed, banned, biased, seen;
  const float* bias;          // of each biased id
  const int32_t* seen_count;  // of each seen id
  const float* repetition;    // of each row
  const float* frequency;
  const float* presence;
};

// ids and logprobs are [n, 1 + num_top]; `rows` selects the rows of the logits, null for all in order.
struct LogprobParams {
  int64_t* ids;
  double* logprobs;
  int64_t* ranks;
  Logits logits;
  int64_t num_ids, count, num_top;
  const int64_t* token_ids;
  const int64_t* rows;
};

}  // namespace inferx::sampling
