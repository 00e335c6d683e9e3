// Barriers of a block.
#pragma once
#include "simt/platform.h"

namespace simt {

#ifdef SIMT_GPU

// Barrier `id` (1 to 15; 0 is __syncthreads) among `threads` threads, a multiple of 32: whole warps.
SIMT_DEV void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts as arrived without waiting; the others wait with named_barrier(id, threads).
SIMT_DEV void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// In a loop that polls what another thread writes.
SIMT_DEV void spin_yield() { __nanosleep(20); }

#else

namespace host {
enum class Reduction { count, all, any };
void barrier(Site at);
int barrier_reduce(Reduction reduction, bool value, Site at);
void named_barrier(int id, int threads, bool wait, Site at);
void spin(Site at);
}  // namespace host

inline void named_barrier(int id, int threads, SIMT_AT) { host::named_barrier(id, threads, true, at); }
inline void named_barrier_arrive(int id, int threads, SIMT_AT) {
  host::named_barrier(id, threads, false, at);
}
inline void spin_yield(SIMT_AT) { host::spin(at); }

#endif

}  // namespace simt

#ifdef SIMT_CPU
// Every thread of the block has to come to the same line.
inline void __syncthreads(SIMT_AT) { simt::host::barrier(at); }
inline int __syncthreads_count(int predicate, SIMT_AT) {
  return simt::host::barrier_reduce(simt::host::Reduction::count, predicate != 0, at);
}
inline int __syncthreads_and(int predicate, SIMT_AT) {
  return simt::host::barrier_reduce(simt::host::Reduction::all, predicate != 0, at);
}
inline int __syncthreads_or(int predicate, SIMT_AT) {
  return simt::host::barrier_reduce(simt::host::Reduction::any, predicate != 0, at);
}
inline void __nanosleep(unsigned, SIMT_AT) { simt::host::spin(at); }
#endif
