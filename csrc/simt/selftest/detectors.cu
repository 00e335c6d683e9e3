// One planted bug per kernel.  tests/simt/test_detectors.py expects the executor to report each at a line
// that is marked "here: <kernel>".
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

#define DETECTOR(name)                                                                             \
  __global__ void name(const int* in, int* out, int n);                                            \
  SELFTEST(name) {                                                                                 \
    return test.launch(name, test.in<int>(0), test.out<int>(0), static_cast<int>(test.number(0))); \
  }                                                                                                \
  __global__ void name([[maybe_unused]] const int* in, [[maybe_unused]] int* out, [[maybe_unused]] int n)

// ---- barriers ----

DETECTOR(two_barriers) {
  if (threadIdx.x < 64)
    __syncthreads();  // here: two_barriers
  else
    __syncthreads();  // here: two_barriers
}

DETECTOR(barrier_missed) {
  if (threadIdx.x != 77) __syncthreads();  // here: barrier_missed
}

DETECTOR(early_return) {
  if (threadIdx.x >= 96) return;
  __syncthreads();  // here: early_return
}

DETECTOR(early_return_named) {
  if (threadIdx.x >= 96) return;
  named_barrier(1, 128);  // here: early_return_named
}

DETECTOR(named_barrier_half) {
  if (threadIdx.x / 32 == 1) named_barrier(1, 64);  // here: named_barrier_half
}

DETECTOR(named_barrier_sizes) {
  if (threadIdx.x < 32)
    named_barrier(1, 64);  // here: named_barrier_sizes
  else if (threadIdx.x < 64)
    named_barrier(1, 96);  // here: named_barrier_sizes
}

DETECTOR(named_barrier_not_warps) {
  named_barrier(1, 40);  // here: named_barrier_not_warps
}

DETECTOR(named_barrier_twice) {
  if (threadIdx.x < 32) {
    named_barrier_arrive(1, 64);
    named_barrier_arrive(1, 64);  // here: named_barrier_twice
  }
}

// The instruction is for whole warps: the count comes right, the lanes do not.
DETECTOR(named_barrier_half_warps) {
  if (threadIdx.x % 32 < 16) named_barrier(1, 64);  // here: named_barrier_half_warps
}

DETECTOR(named_barrier_two_lines) {
  if (threadIdx.x % 32 < 16)
    named_barrier(1, 128);  // here: named_barrier_two_lines
  else
    named_barrier(1, 128);  // here: named_barrier_two_lines
}

DETECTOR(livelock) {
  SHARED(int, flag, [1]);
  if (threadIdx.x == 0) flag[0] = 0;
  __syncthreads();
  volatile int* f = flag;
  while (*f == 0) spin_yield();  // here: livelock
}

// Nobody lets the others run.
DETECTOR(endless_loop) {
  volatile int* flag = out;
  if (threadIdx.x == 0) {
    while (*flag == 0) {  // here: endless_loop
    }
  }
}

// Ends, but not soon.
DETECTOR(too_slow) {
  for (int i = 0; i < 1 << 30; ++i) __syncthreads();  // here: too_slow
}

DETECTOR(too_slow_alone) {
  volatile int* mine = out + threadIdx.x;
  for (int i = 0; i < 1 << 27; ++i) *mine = i;  // here: too_slow_alone
}

// ---- warps ----

DETECTOR(two_shuffles) {
  const int v = threadIdx.x;
  if (lane_id() % 2 == 1)
    out[threadIdx.x] = __shfl_xor_sync(~0u, v, 1);  // here: two_shuffles
  else
    out[threadIdx.x] = __shfl_xor_sync(~0u, v, 2);  // here: two_shuffles
}

DETECTOR(shuffle_from_outside) {
  const unsigned mask = lane_id() < 8 ? 0xFFu : 0xFFFFFF00u;
  out[threadIdx.x] = __shfl_sync(mask, static_cast<int>(threadIdx.x), 9);  // here: shuffle_from_outside
}

DETECTOR(overlapping_masks) {
  const unsigned mask = lane_id() < 8 ? 0xFFu : ~0u;
  out[threadIdx.x] = __shfl_sync(mask, static_cast<int>(threadIdx.x), 0);  // here: overlapping_masks
}

DETECTOR(not_in_own_mask) {
  out[threadIdx.x] = __ballot_sync(0xFFFFu, 1);  // here: not_in_own_mask
}

DETECTOR(lane_left) {
  if (lane_id() == 5) return;
  out[threadIdx.x] = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1);  // here: lane_left
}

DETECTOR(shuffle_width) {
  out[threadIdx.x] = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1, 12);  // here: shuffle_width
}

DETECTOR(sync_warp_missed) {
  if (lane_id() < 31) __syncwarp();  // here: sync_warp_missed
}

SIMT_DEV int rotate(int v SIMT_ATP) { return __shfl_sync(~0u, v, (lane_id() + 1) % 32, 32 SIMT_PASS); }
DETECTOR(in_helper) {
  if (lane_id() == 5) return;
  out[threadIdx.x] = rotate(static_cast<int>(threadIdx.x));  // here: in_helper
}

// ---- shared memory ----

DETECTOR(race_in_warp) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = 0;
  __syncthreads();
  s[threadIdx.x] = 1;                     // here: race_in_warp
  out[threadIdx.x] = s[threadIdx.x ^ 1];  // here: race_in_warp
}

// What a lane does after a __syncwarp is new to the others.
DETECTOR(race_after_sync_warp) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = 0;
  __syncwarp();
  s[threadIdx.x] = 1;                     // here: race_after_sync_warp
  out[threadIdx.x] = s[threadIdx.x ^ 1];  // here: race_after_sync_warp
}

DETECTOR(race_between_warps) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = 1;  // here: race_between_warps
  __syncwarp();
  out[threadIdx.x] = s[(threadIdx.x + 32) % 128];  // here: race_between_warps
}

DETECTOR(overwritten_too_early) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  const int v = s[127 - threadIdx.x];  // here: overwritten_too_early
  s[threadIdx.x] = v;                  // here: overwritten_too_early
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}

DETECTOR(lost_increments) {
  SHARED(int, s, [1]);
  if (threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  s[0]++;  // here: lost_increments
}

// Others may still add when one reads.
DETECTOR(plain_read_of_sum) {
  SHARED(int, s, [1]);
  if (threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  atomicAdd(&s[0], 1);      // here: plain_read_of_sum
  out[threadIdx.x] = s[0];  // here: plain_read_of_sum
}

// Of two who have added without order one reads.
DETECTOR(hidden_atomic) {
  SHARED(int, s, [1]);
  if (threadIdx.x == 0) s[0] = 0;
  __syncthreads();
  if (threadIdx.x % 64 == 0) atomicAdd(&s[0], 1);  // here: hidden_atomic
  if (threadIdx.x == 64) out[0] = s[0];            // here: hidden_atomic
}

DETECTOR(plain_read_of_global_sum) {
  atomicAdd(&out[0], 1);          // here: plain_read_of_global_sum
  out[1 + threadIdx.x] = out[0];  // here: plain_read_of_global_sum
}

// bar.arrive orders what came before it, not what comes after.
DETECTOR(write_after_arrive) {
  SHARED(int, s, [32]);
  if (threadIdx.x < 32) {
    s[threadIdx.x] = 1;
    named_barrier_arrive(1, 64);
    s[threadIdx.x] = 2;  // here: write_after_arrive
  } else if (threadIdx.x < 64) {
    named_barrier(1, 64);
    out[threadIdx.x] = s[threadIdx.x - 32];  // here: write_after_arrive
  }
}

// Who only arrives learns nothing of the others.
DETECTOR(read_after_arrive) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    named_barrier_arrive(1, 64);
    out[threadIdx.x] = s[threadIdx.x + 32];  // here: read_after_arrive
  } else if (threadIdx.x < 64) {
    s[threadIdx.x] = 1;  // here: read_after_arrive
    named_barrier(1, 64);
  }
}

DETECTOR(uninitialised) {
  SHARED(int, s, [128]);
  if (threadIdx.x != 9) s[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];  // here: uninitialised
}

// The last word of a vector.
DETECTOR(uninitialised_tail) {
  SHARED(uint4, s, [1]);
  if (threadIdx.x < 3) reinterpret_cast<int*>(s)[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = static_cast<int>(ld16(s).x);  // here: uninitialised_tail
}

DETECTOR(uninitialised_atomic) {
  SHARED(int, s, [4]);
  atomicAdd(&s[3], 1);  // here: uninitialised_atomic
}

DETECTOR(shared_past_end) {
  SHARED(int, s, [100]);
  int* p = s;
  p[threadIdx.x] = 1;  // here: shared_past_end
}

DETECTOR(shared_read_past_end) {
  SHARED(int, s, [128]);
  s[threadIdx.x] = 1;
  __syncthreads();
  const int* p = s;
  out[threadIdx.x] = p[threadIdx.x + 1];  // here: shared_read_past_end
}

// So far behind one variable that the next could lie there.
DETECTOR(shared_far_past_end) {
  SHARED(int, a, [64]);
  SHARED(int, b, [256]);
  if (threadIdx.x == 0) a[0] = b[0] = 0;
  int* p = a;
  p[64 + 64 + threadIdx.x] = 1;  // here: shared_far_past_end
}

DETECTOR(write_to_mbarrier) {
  SHARED(uint64_t, bar, [1]);
  if (threadIdx.x == 0) {
    mbar_init(bar, 1);
    bar[0] = 0;  // here: write_to_mbarrier
  }
}

DETECTOR(dynamic_too_small) {
  DYN_SHARED(bytes, 16);
  reinterpret_cast<int*>(bytes)[threadIdx.x] = 1;  // here: dynamic_too_small
}

DETECTOR(static_too_large) {
  SHARED(int, s, [48 * 1024 / 4 + 1]);  // here: static_too_large
  s[threadIdx.x] = 1;
}

DETECTOR(shared_not_aligned) {
  SHARED(unsigned char, s, [2048]);
  for (int i = 0; i < 16; ++i) s[threadIdx.x * 16 + i] = 0;
  out[threadIdx.x] = ld16(s + threadIdx.x * 16).x;  // here: shared_not_aligned
}

// ---- global memory ----

DETECTOR(read_past_end) {
  out[threadIdx.x] = in[threadIdx.x + n - 127];  // here: read_past_end
}

DETECTOR(read_before_start) {
  out[threadIdx.x] = in[static_cast<int>(threadIdx.x) - 1];  // here: read_before_start
}

DETECTOR(write_past_end) {
  out[threadIdx.x + n - 127] = 1;  // here: write_past_end
}

// in, out: rows of 6 elements, 12 apart.
DETECTOR(read_between_rows) {
  if (threadIdx.x == 0) out[0] = in[12 + 8];  // here: read_between_rows
}

// A vector that starts in a row and ends behind it.
DETECTOR(vector_over_row) {
  if (threadIdx.x == 0) out[0] = ld16(in + 12 * 2 + 4 * n).x;  // here: vector_over_row
}

DETECTOR(write_between_rows) {
  if (threadIdx.x == 0) out[12 + 9] = 1;  // here: write_between_rows
}

DETECTOR(write_to_input) {
  const int v = in[threadIdx.x];
  const_cast<int*>(in)[threadIdx.x] = v + 1;  // here: write_to_input
}

DETECTOR(wild_pointer) {
  *reinterpret_cast<volatile int*>(uintptr_t{0x1234560} + 16 * threadIdx.x) = 1;  // here: wild_pointer
}

DETECTOR(threads_write_one_word) {
  out[0] = static_cast<int>(threadIdx.x);  // here: threads_write_one_word
}

DETECTOR(blocks_write_one_word) {
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);  // here: blocks_write_one_word
}

DETECTOR(block_reads_others) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;  // here: block_reads_others
  __syncthreads();
  if (threadIdx.x == 0)
    out[n - 1 - blockIdx.x] = out[(blockIdx.x + 1) % gridDim.x * blockDim.x];  // here: block_reads_others
}

DETECTOR(global_race_in_warp) {
  out[threadIdx.x] = 1;                           // here: global_race_in_warp
  out[threadIdx.x + 128] = out[threadIdx.x ^ 1];  // here: global_race_in_warp
}

// The last block adds up, but the others' results were never fenced.
DETECTOR(last_block_unfenced) {
  SHARED(int, last, [1]);
  out[1 + blockIdx.x * blockDim.x + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) last[0] = atomicAdd(&out[0], 1) == static_cast<int>(gridDim.x) - 1;
  __syncthreads();
  if (last[0] != 0) {
    int sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x)
      sum += out[1 + i];  // here: last_block_unfenced
    atomicAdd(&out[n - 1], sum);
  }
}

DETECTOR(misaligned_vector) {
  out[threadIdx.x] = ld16(in + 1).x;  // here: misaligned_vector
}

DETECTOR(misaligned_plain) {
  out[threadIdx.x] = reinterpret_cast<const int4*>(in + 1)->x;  // here: misaligned_plain
}

DETECTOR(misaligned_atomic) {
  atomicAdd(reinterpret_cast<int*>(reinterpret_cast<char*>(out) + 2), 1);  // here: misaligned_atomic
}

// ---- the thread itself ----

DETECTOR(register_array) {
  int r[4];
  for (int i = 0; i < 4; ++i) r[i] = in[i];
  out[threadIdx.x] = r[in[0] + 4];  // here: register_array
}

DETECTOR(shift_too_far) {
  out[threadIdx.x] = 1 << (32 + (in[threadIdx.x] & 1));  // here: shift_too_far
}

DETECTOR(division_by_zero) {                     // here: division_by_zero
  out[threadIdx.x] = 5 / (in[threadIdx.x] & 0);  // here: division_by_zero
}

DETECTOR(trap) {
  if (in[threadIdx.x] == in[threadIdx.x]) __trap();  // here: trap
}

DETECTOR(stack_overflow) {
  volatile char large[200000];
  for (int i = 0; i < 200000; i += 1000) large[i] = 1;
  out[threadIdx.x] = large[threadIdx.x * 1000];
}

DETECTOR(others_local_memory) {
  SHARED(const volatile int*, p, [1]);
  volatile int mine = in[threadIdx.x];
  if (threadIdx.x == 0) p[0] = &mine;
  __syncthreads();
  out[threadIdx.x] = *p[0];  // here: others_local_memory
  __syncthreads();
}

struct Large {
  char bytes[5000];
};
__global__ void large_arguments_kernel(Large large, int* out) { out[threadIdx.x] = large.bytes[0]; }
SELFTEST(large_arguments) { return test.launch(large_arguments_kernel, Large{}, test.out<int>(0)); }

// Nothing wrong: for the limits of launches.
DETECTOR(nothing) {
  if (threadIdx.x == 0 && blockIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) out[0] = 1;
}

}  // namespace
