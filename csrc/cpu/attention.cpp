#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "cpu/attention_kernels.h"
#include "cpu/attention_plan.h"
#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(AttentionKernels, attention_kernels)

namespace {

// Multiply-adds (some 20 us) below which waking another thread costs more than it saves; a team is awake.
constexpr double kMinWorkPerThread = 1 << 20, kMinWorkInTeam = 1 << 16;
constexpr size_t kAlignment = 64;
// Kept between calls up to this size; a step makes one call per layer, and fresh pages cost more than the
// kernel on small ones.
constexpr size_t kKeepBytes = size_t{32} << 20;

class Workspace {
 public:
  ~Workspace() { release(); }

  float* reserve(size_t floats) {
    const size_t bytes = floats * sizeof(float);
    if (bytes > bytes_) {
      release();
      data_ = static_cast<float*>(::operator new(bytes, std::align_val_t{kAlignment}));
      bytes_ = bytes;
    }
    return data_;
  }
  void trim() {
    if (bytes_ > kKeepBytes) release();
  }

 private:
  void release() {
    ::operator delete(data_, std::align_val_t{kAlignment});
    data_ = nullptr;
    bytes_ = 0;
  }
  float* data_ = nullptr;
  size_t bytes_ = 0;
};

// Hands items to threads one at a time, in order.  body(item, worker).
template <class Body>
void for_each_item(int64_t count, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  parallel_for(std::min<int64_t>(threads, count), 1, [&](int64_t worker, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i, worker);
  });
}

}  // namespace

void paged_attention(const AttentionParams& params) {
  const AttentionKernels& kernels = attention_kernels();
  int threads = omp_in_parallel() && !Team::current() ? 1 : get_num_threads();
  AttentionPlan plan = plan_attention(params, threads);
  if (plan.items.empty()) return;
  const double work = plan.cost * static_cast<double>(params.head_dim + params.value_dim) / 2;
  const double least = Team::current() ? kMinWorkInTeam : kMinWorkPerThread;
  threads = std::clamp(static_cast<int>(std::min(work / least, 1e6)), 1, threads);

  thread_local Workspace workspace;  // of the calling thread, for all workers
  const int64_t scratch_floats =
      (attention_scratch_floats(params.head_dim, params.value_dim, plan.max_rows, plan.max_heads) + 15) / 16 *
      16;
  float* memory = workspace.reserve(static_cast<size_t>(scratch_floats * threads + plan.partial_floats));
  float* partials = memory + scratch_floats * threads;
  for_each_item(static_cast<int64_t>(plan.items.size()), threads, [&](int64_t i, int64_t worker) {
    kernels.attend(params, plan.items[i], partials, memory + worker * scratch_floats);
  });
  for_each_item(static_cast<int64_t>(plan.merges.size()), threads,
                [&](int64_t i, int64_t) { kernels.merge(params, plan.merges[i], partials); });
  workspace.trim();
}

void merge_attn_states(const MergeStatesParams& params) {
  const AttentionKernels& kernels = attention_kernels();
  const int64_t rows = params.num_tokens * params.num_heads;
  const int64_t grain = std::max<int64_t>(16384 / std::max<int64_t>(params.head_dim, 1), 1);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) { kernels.merge_states(params, begin, end); });
}

}  // namespace inferx::cpu
