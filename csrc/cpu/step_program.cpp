#include "cpu/step_program.h"

#include <algorithm>
#include <utility>

#include "cpu/embedding.h"
#include "cpu/linear.h"
#include "cpu/linear_int8.h"
#include "cpu/norm.h"
#include "cpu/parallel.h"
#include "cpu/rotary.h"
#include "rows.h"

namespace inferx::cpu {
namespace {

constexpr int64_t kFewTokens = 64;
constexpr int64_t kElementsPerThread = 16384;  // of what is read, changed and written once

// Floats of a whole number of cache lines.
int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

int64_t quantized_floats(int64_t rows, int64_t k) { return lines((QuantizedRows::nbytes(rows, k) + 3) / 4); }

// f(row, columns) of every row, in place.
template <class F>
void for_each_row(float* x, int64_t stride, int64_t rows, int64_t width, const F& f) {
  parallel_for(rows, kElementsPerThread / (width + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) f(row, x + row * stride);
  });
}

}  // namespace

StepProgram::StepProgram(int64_t out_width) { widths_.push_back({out_width, -1}); }

int64_t StepProgram::add_buffer(int64_t width, int64_t slot) {
  widths_.push_back({width, slot});
  num_slots_ = std::max(num_slots_, slot + 1);
  return num_buffers() - 1;
}

int64_t StepProgram::add_quantized(int64_t k, int64_t slot) {
  quantized_widths_.push_back({k, slot});
  num_slots_ = std::max(num_slots_, slot + 1);
  return num_quantized() - 1;
}

// Each row's columns as groups of `size`.
Rows StepProgram::rows(Columns c, int64_t tokens, int64_t size) const {
  const int64_t shape[] = {tokens, c.width / size}, strides[] = {stride(c), size};
  return make_rows(2, shape, strides);
}

void StepProgram::embedding(const PackedWeight& table, float scale, Columns out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    float* x = p.at(out);
    cpu::embedding(table, in.ids, in.num_tokens, x, p.stride(out));
    if (scale == 1.0f) return;
    for_each_row(x, p.stride(out), in.num_tokens, out.width, [&](int64_t, float* row) {
      for (int64_t i = 0; i < out.width; ++i) row[i] *= scale;
    });
  });
}

void StepProgram::zero(Columns x) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    for_each_row(p.at(x), p.stride(x), in.num_tokens, x.width,
                 [&](int64_t, float* row) { std::fill_n(row, x.width, 0.0f); });
  });
}

void StepProgram::norm(Columns x, const float* weight, int64_t size, float eps, Columns out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    rms_norm({p.at(out), p.at(x), weight, DType::f32, DType::f32, p.rows(out, in.num_tokens, size),
              p.rows(x, in.num_tokens, size), size, eps});
  });
}

void StepProgram::add_norm(Columns x, Columns residual, const float* weight, float eps) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    fused_add_rms_norm({p.at(x), p.at(residual), weight, DType::f32, DType::f32,
                        p.rows(x, in.num_tokens, x.width), p.rows(residual, in.num_tokens, x.width), x.width,
                        eps});
  });
}

void StepProgram::norm_quantize(Columns x, const Columns* residual, const float* weight, float eps,
                                int64_t out) {
  const bool added = residual != nullptr;
  const Columns r = added ? *residual : x;
  ops_.push_back([=](const StepProgram& p, const StepInputs&) {
    rms_norm_quantize(
        {p.at(x), added ? p.at(r) : nullptr, p.stride(x), p.stride(r), weight, eps, p.quantized_[out]});
  });
}

void StepProgram::quantize(Columns x, int64_t out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs&) {
    quantize_rows(p.at(x), p.stride(x), p.quantized_[out]);
  });
}

void StepProgram::linear(Columns x, const PackedWeight& weight, const float* bias, Columns out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    cpu::linear({p.at(x), in.num_tokens, p.stride(x), weight, bias, p.at(out), p.stride(out)});
  });
}

void StepProgram::linear_int8(int64_t x, const PackedWeight& weight, const float* bias, Columns out) {
  reads(weight);
  ops_.push_back([=](const StepProgram& p, const StepInputs&) {
    cpu::linear_int8({p.quantized_[x], weight, bias, p.at(out), p.stride(out)});
  });
}

void StepProgram::activate_and_mul(const GatedActivation& f, Columns x, Columns out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    cpu::activate_and_mul({f, DType::f32, p.at(out), p.at(x), p.rows(out, in.num_tokens, out.width),
                           p.rows(x, in.num_tokens, x.width), out.width});
  });
}

void StepProgram::gate_up_int8(int64_t x, const PackedWeight& weight, const float* bias,
                               const GatedActivation& f, int64_t out) {
  reads(weight, weight.halves_alternate ? 2 : 1);
  ops_.push_back([=](const StepProgram& p, const StepInputs&) {
    cpu::gate_up_int8({p.quantized_[x], weight, bias, f, p.quantized_[out]});
  });
}

// A NaN stays one.
void StepProgram::clamp(Columns x, float limit) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    for_each_row(p.at(x), p.stride(x), in.num_tokens, x.width, [&](int64_t, float* row) {
      for (int64_t i = 0; i < x.width; ++i) row[i] = std::clamp(row[i], -limit, limit);
    });
  });
}

void StepProgram::rope_and_cache(Columns query, Columns key, Columns value, int64_t head_dim, int64_t rotary,
                                 int64_t layer) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    const StepRotary& r = in.rotaries[rotary];
    rotary_embedding({{{p.at(query), p.stride(query), head_dim, query.width / head_dim},
                       {p.at(key), p.stride(key), head_dim, key.width / head_dim}},
                      2,
                      DType::f32,
                      r.index,
                      r.index_stride,
                      in.num_tokens,
                      r.table,
                      r.table_stride,
                      r.rot_dim,
                      true});
    const StepCache& cache = p.caches[layer];
    reshape_and_cache_flash({{{p.at(key), p.stride(key), head_dim}, {p.at(value), p.stride(value), head_dim}},
                             {cache.keys, cache.values},
                             {{nullptr, 0}, {nullptr, 0}},
                             DType::f32,
                             cache.dtype,
                             in.slot_mapping,
                             in.num_tokens,
                             key.width / head_dim,
                             head_dim,
                             cache.block_size,
                             cache.num_blocks * cache.block_size});
  });
}

void StepProgram::attention(Columns query, const StepAttention& a, Columns out) {
  ops_.push_back([=](const StepProgram& p, const StepInputs& in) {
    const StepCache& cache = p.caches[a.layer];
    AttentionParams params{};
    params.query = p.at(query);
    params.query_stride_token = p.stride(query);
    params.query_stride_head = a.head_dim;
    params.key_cache = cache.keys.data;
    params.key_stride_block = cache.keys.stride_block;
    params.key_stride_slot = cache.keys.stride_slot;
    params.key_stride_head = cache.keys.stride_head;
    params.value_cache = cache.values.data;
    params.value_stride_block = cache.values.stride_block;
    params.value_stride_slot = cache.values.stride_slot;
    params.value_stride_head = cache.values.stride_head;
    params.cache_dtype = cache.dtype;
    params.block_tables = in.block_tables;
    params.block_tables_stride = in.block_tables_stride;
    params.cu_seqlens_q = in.cu_seqlens_q;
    params.seq_lens = in.seq_lens;
    params.batch = in.batch;
    params.num_heads = query.width / a.head_dim;
    params.num_kv_heads = a.num_kv_heads;
    params.head_dim = params.value_dim = a.head_dim;
    params.block_size = cache.block_size;
    params.scale = a.scale;
    params.softcap = a.softcap;
    params.window = a.window;
    params.sinks = a.sinks;
    params.out = p.at(out);
    params.out_stride_token = p.stride(out);
    params.out_stride_head = a.head_dim;
    paged_attention(params);
  });
}

void StepProgram::head(const PackedWeight& weight, bool int8) {
  reads(weight);
  head_k_ = weight.k;
  head_int8_ = int8;
  head_ = [=](const StepProgram& p, const StepInputs& in) {
    const Block to = p.head_rows_;
    for_each_row(to.data, to.stride, in.num_logits, weight.k, [&](int64_t row, float* copy) {
      std::copy_n(in.out + in.logits_rows[row] * in.out_stride, weight.k, copy);
    });
    if (int8) {
      quantize_rows(to.data, to.stride, p.head_quantized_);
      cpu::linear_int8({p.head_quantized_, weight, nullptr, in.logits, in.logits_stride});
    } else {
      cpu::linear({to.data, in.num_logits, to.stride, weight, nullptr, in.logits, in.logits_stride});
    }
  };
}

void StepProgram::reads(const PackedWeight& weight, int64_t tiles_per_item) {
  reads_.push_back(
      {ops_.size(), weight.data, weight.tiles() / tiles_per_item, weight.tile_bytes() * tiles_per_item});
}

// Says which weight is read after `op`: between products, and while others finish, memory would be idle.
void StepProgram::announce_after(size_t op) const {
  Team* team = Team::current();
  if (!team) return;
  const auto next = std::upper_bound(reads_.begin(), reads_.end(), op,
                                     [](size_t at, const Read& read) { return at < read.op; });
  if (next != reads_.end()) {
    team->announce(next->data, next->items, next->item_bytes);
  } else {
    team->announce(nullptr, 0, 0);
  }
}

// Gives every buffer its memory.
void StepProgram::place(const StepInputs& in) {
  const int64_t tokens = in.num_tokens;
  std::vector<int64_t> slots(num_slots_ + 1, 0);  // sizes in floats, then where each begins
  const auto need = [&](int64_t slot, int64_t floats) { slots[slot] = std::max(slots[slot], lines(floats)); };
  for (size_t i = 1; i < widths_.size(); ++i) need(widths_[i].slot, tokens * widths_[i].width);
  for (const Placed& q : quantized_widths_) need(q.slot, quantized_floats(tokens, q.width));
  const int64_t head_floats = lines(in.num_logits * head_k_);
  need(num_slots_, head_floats + (head_int8_ ? quantized_floats(in.num_logits, head_k_) : 0));
  int64_t floats = 0;
  for (int64_t& slot : slots) floats += std::exchange(slot, floats);

  float* memory = memory_.floats(floats);
  blocks_.assign(1, {in.out, in.out_stride});
  for (size_t i = 1; i < widths_.size(); ++i) {
    blocks_.push_back({memory + slots[widths_[i].slot], widths_[i].width});
  }
  quantized_.clear();
  for (const Placed& q : quantized_widths_) quantized_.emplace_back(memory + slots[q.slot], tokens, q.width);
  head_rows_ = {memory + slots[num_slots_], head_k_};
  if (head_int8_ && in.num_logits > 0) {
    head_quantized_ = QuantizedRows(head_rows_.data + head_floats, in.num_logits, head_k_);
  }
}

void StepProgram::run(const StepInputs& inputs) {
  if (inputs.num_tokens == 0) return;
  place(inputs);
  std::exception_ptr failure;  // out of memory: the team's threads are to be let go first
  run_with_team([&] {
    try {
      // With many tokens the processor has more to do than memory.
      const bool announces = inputs.num_tokens <= kFewTokens;
      for (size_t i = 0; i < ops_.size(); ++i) {
        if (announces) announce_after(i);
        ops_[i](*this, inputs);
      }
      if (announces) announce_after(ops_.size());
      if (inputs.num_logits > 0) head_(*this, inputs);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  memory_.trim();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace inferx::cpu
