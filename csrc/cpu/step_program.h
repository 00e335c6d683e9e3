// A decoder's step as a flat list of ops over buffers: recorded once, then run on any number of tokens by one
// call and one team of threads.
//
// Each op calls what the op of the same name calls (linear.h, norm.h, attention.h, ...), so a program gives
// the bits of the ops one by one.  A buffer has a width per token; its memory is there while a step runs.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "cpu/activation.h"
#include "cpu/attention.h"
#include "cpu/packed_weight.h"
#include "cpu/quantized_rows.h"
#include "cpu/reshape_and_cache.h"
#include "cpu/scratch.h"

namespace inferx::cpu {

// Columns [first, first + width) of each row of a buffer of floats.
struct Columns {
  int64_t buffer, first, width;
};

// Cosines and sines: token t's row is index[t * index_stride].
struct StepRotary {
  const int64_t* index;
  int64_t index_stride;
  const float* table;
  int64_t table_stride, rot_dim;
};

// Keys and values of one layer, [num_blocks, block_size, heads, head_dim] each.
struct StepCache {
  CacheOutput keys, values;
  DType dtype;
  int64_t num_blocks, block_size;
};

// What a step reads besides weights and caches; everything has been checked.
struct StepInputs {
  int64_t num_tokens, batch;
  const int64_t* ids;
  std::vector<StepRotary> rotaries;
  const int64_t* slot_mapping;
  const int32_t* block_tables;
  int64_t block_tables_stride;
  const int32_t *cu_seqlens_q, *seq_lens;
  float* out;  // buffer 0
  int64_t out_stride;
  // Rows of `out` whose logits are wanted.
  const int64_t* logits_rows;
  int64_t num_logits;
  float* logits;
  int64_t logits_stride;
};

// What attention needs beside the step.
struct StepAttention {
  int64_t layer, num_kv_heads, head_dim, window;  // window 0: none
  float scale, softcap;
  const float* sinks;  // per head, or null
};

class StepProgram {
 public:
  // ---- Recording.  Sizes have been checked by the caller. -------------------------------------------

  explicit StepProgram(int64_t out_width);  // of buffer 0, which is the caller's memory

  // Buffers of one slot share its memory: they are not in use at the same time.  Rows of int8 are numbered
  // apart from buffers of floats.
  int64_t add_buffer(int64_t width, int64_t slot);
  int64_t add_quantized(int64_t k, int64_t slot);
  int64_t num_buffers() const { return static_cast<int64_t>(widths_.size()); }
  int64_t num_quantized() const { return static_cast<int64_t>(quantized_widths_.size()); }
  int64_t width(int64_t buffer) const { return widths_[buffer].width; }
  int64_t quantized_width(int64_t buffer) const { return quantized_widths_[buffer].width; }

  void embedding(const PackedWeight& table, float scale, Columns out);
  void zero(Columns x);
  // The norm of each group of `size` columns; `out` may be `x`.
  void norm(Columns x, const float* weight, int64_t size, float eps, Columns out);
  void add_norm(Columns x, Columns residual, const float* weight, float eps);
  // residual null: the norm of x itself.
  void norm_quantize(Columns x, const Columns* residual, const float* weight, float eps, int64_t out);
  void quantize(Columns x, int64_t out);
  void linear(Columns x, const PackedWeight& weight, const float* bias, Columns out);
  void linear_int8(int64_t x, const PackedWeight& weight, const float* bias, Columns out);
  void activate_and_mul(const GatedActivation& f, Columns x, Columns out);
  void gate_up_int8(int64_t x, const PackedWeight& weight, const float* bias, const GatedActivation& f,
                    int64_t out);
  void clamp(Columns x, float limit);
  void rope_and_cache(Columns query, Columns key, Columns value, int64_t head_dim, int64_t rotary,
                      int64_t layer);
  void attention(Columns query, const StepAttention& attention, Columns out);
  // Last, and run where logits are asked for: of rows of buffer 0, quantised first where `int8`.
  void head(const PackedWeight& weight, bool int8);

  // ---- Running --------------------------------------------------------------------------------------

  std::vector<StepCache> caches;  // of each layer

  // Not on two threads at once.
  void run(const StepInputs& inputs);

 private:
  struct Placed {
    int64_t width, slot;
  };
  struct Block {
    float* data;
    int64_t stride;
  };
  using Op = std::function<void(const StepProgram&, const StepInputs&)>;

  float* at(Columns c) const { return blocks_[c.buffer].data + c.first; }
  int64_t stride(Columns c) const { return blocks_[c.buffer].stride; }
  Rows rows(Columns c, int64_t tokens, int64_t size) const;
  void place(const StepInputs& inputs);

  std::vector<Placed> widths_, quantized_widths_;
  int64_t num_slots_ = 0;
  // A weight that an op reads, cut into `items`.
  struct Read {
    size_t op;
    const uint8_t* data;
    int64_t items, item_bytes;
  };

  void reads(const PackedWeight& weight, int64_t tiles_per_item = 1);  // the next op to be recorded
  void announce_after(size_t op) const;

  std::vector<Op> ops_;
  std::vector<Read> reads_;
  Op head_;
  int64_t head_k_ = 0;
  bool head_int8_ = false;

  // Of the step that runs.
  std::vector<Block> blocks_;
  std::vector<QuantizedRows> quantized_;
  Block head_rows_{};
  QuantizedRows head_quantized_;
  Scratch memory_;
};

}  // namespace inferx::cpu
