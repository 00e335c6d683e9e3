// Threads of the CPU ops: OpenMP through the libgomp that torch uses too, so that there is one pool per
// process.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "cpu/team.h"

namespace inferx::cpu {

// Threads per op.  Until set_num_threads is called this is OpenMP's own setting (OMP_NUM_THREADS,
// torch.set_num_threads); 0 goes back to it.
int get_num_threads();
void set_num_threads(int count);

// Calls body(begin, end) over a split of [0, count), each item once.  Every thread gets at least `grain`
// items, so a small job runs on the caller alone; inside another parallel region it always does.  `body` must
// not throw.  Which thread takes which items never changes a result: ops give each item its own fixed order
// of operations.
//
// Inside run_with_team this costs some hundred nanoseconds instead of some microseconds, and threads take
// their share in several pieces.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (Team* team = Team::current()) {
    team->parallel_for(count, grain, body);
    return;
  }
  const int64_t useful = count / grain;
  const int threads = omp_in_parallel() ? 1 : static_cast<int>(std::min<int64_t>(get_num_threads(), useful));
  if (threads <= 1) {
    body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads();  // may be smaller than asked for
    const int64_t rank = omp_get_thread_num();
    const int64_t begin = count / team * rank + std::min(count % team, rank);
    const int64_t end = begin + count / team + (rank < count % team ? 1 : 0);
    if (begin < end) body(begin, end);
  }
}

// Runs work() on the calling thread while the other threads stand by for every parallel_for in it: for a long
// row of short ops.  `work` must not throw.  On one thread, or inside another parallel region, it is only
// called.
template <class Work>
void run_with_team(const Work& work) {
  const int threads = omp_in_parallel() || Team::current() ? 1 : get_num_threads();
  if (threads <= 1) {
    work();
    return;
  }
  Team team;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() == 0) {
      team.lead(omp_get_num_threads(), work);
    } else {
      team.stand_by(omp_get_thread_num());
    }
  }
}

}  // namespace inferx::cpu
