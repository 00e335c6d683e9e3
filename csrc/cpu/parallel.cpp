#include "cpu/parallel.h"

#include <atomic>

namespace inferx::cpu {
namespace {
std::atomic<int> threads_asked{0};
}

int get_num_threads() {
  const int asked = threads_asked.load(std::memory_order_relaxed);
  return asked > 0 ? asked : omp_get_max_threads();
}

void set_num_threads(int count) { threads_asked.store(std::max(count, 0), std::memory_order_relaxed); }

}  // namespace inferx::cpu
