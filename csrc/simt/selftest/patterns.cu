// Legal patterns, which must give their results in every schedule without a report
// (tests/simt/test_executor.py).
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

// ---- indices ----

// out[thread of the grid] = every index and size, packed
__global__ void indices(int64_t* out) {
  const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<int64_t>(gridDim.y) * blockIdx.z);
  const int64_t thread =
      threadIdx.x + blockDim.x * (threadIdx.y + static_cast<int64_t>(blockDim.y) * threadIdx.z);
  const int64_t size = static_cast<int64_t>(blockDim.x) * blockDim.y * blockDim.z;
  int64_t* mine = out + (block * size + thread) * 8;
  const int64_t values[8] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x,
                             blockIdx.y,  blockIdx.z,  lane_id(),   warpSize};
  for (int i = 0; i < 8; ++i) mine[i] = values[i];
}
SELFTEST(indices) { return test.launch(indices, test.out<int64_t>(0)); }

// out: threads in the order in which they came to the first and to the second half.
__global__ void order_of_threads(int* out, int* tickets) {
  const int threads = static_cast<int>(gridDim.x * blockDim.x);
  const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  out[atomicAdd(&tickets[0], 1)] = me;
  __syncthreads();
  out[threads + atomicAdd(&tickets[1], 1)] = me;
}
SELFTEST(order_of_threads) { return test.launch(order_of_threads, test.out<int>(0), test.out<int>(1)); }

__global__ void sms(int* out, int n) {
  if (threadIdx.x == 0) out[0] = n;
}
SELFTEST(num_sms) { return test.launch(sms, test.out<int>(0), num_sms()); }

// ---- warps ----

// out[thread] = the sum of the lanes of its group; groups wait side by side, up to 16 of a warp.
__global__ void warp_groups(int* out, int groups) {
  const int lane = lane_id();
  const unsigned mask = __match_any_sync(~0u, lane % groups);
  out[threadIdx.x] = __reduce_add_sync(mask, lane);
}
SELFTEST(warp_groups) { return test.launch(warp_groups, test.out<int>(0), static_cast<int>(test.number(0))); }

// 16 bytes that are aligned to 8.
struct Doubles {
  double a, b;
};
__global__ void structs_of_doubles(double* out) {
  SHARED(Doubles, s, [64]);
  const int t = static_cast<int>(threadIdx.x);
  s[t] = Doubles{1.0 * t, 2.0};
  __syncthreads();
  const Doubles other = s[63 - t];
  reinterpret_cast<Doubles*>(out + 1)[t] = other;
}
SELFTEST(structs_of_doubles) { return test.launch(structs_of_doubles, test.out<double>(0)); }

// One warp; out [n][32]: each collective's result by lane.
__global__ void collectives(const int* in, int* out) {
  const int lane = lane_id(), v = in[lane];
  const auto put = [&](int i, int value) { out[i * 32 + lane] = value; };
  put(0, __shfl_sync(~0u, v, 3));
  put(1, __shfl_sync(~0u, v, lane + 5, 8));
  put(2, __shfl_up_sync(~0u, v, 2));
  put(3, __shfl_up_sync(~0u, v, 3, 16));
  put(4, __shfl_down_sync(~0u, v, 2));
  put(5, __shfl_down_sync(~0u, v, 3, 16));
  put(6, __shfl_xor_sync(~0u, v, 5));
  put(7, __shfl_xor_sync(~0u, v, 9, 8));
  put(8, static_cast<int>(__ballot_sync(~0u, v > 0)));
  put(9, __any_sync(~0u, v == in[7]) * 2 + __all_sync(~0u, v == v + 0));
  put(10, __all_sync(~0u, v > 0) * 2 + __any_sync(~0u, v > 2000000));
  put(11, static_cast<int>(__match_any_sync(~0u, v & 3)));
  int equal = -1;
  put(12, static_cast<int>(__match_all_sync(~0u, v & 3, &equal)) + equal);
  put(13, static_cast<int>(__match_all_sync(~0u, 7, &equal)) + equal);
  put(14, __reduce_add_sync(~0u, v));
  put(15, __reduce_min_sync(~0u, v));
  put(16, __reduce_max_sync(~0u, v));
  put(17, static_cast<int>(__reduce_min_sync(~0u, static_cast<unsigned>(v))));
  put(18, static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(v))));
  put(19, static_cast<int>(__reduce_and_sync(~0u, static_cast<unsigned>(v))));
  put(20, static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(v))));
  put(21, static_cast<int>(__reduce_xor_sync(~0u, static_cast<unsigned>(v))));
  put(22, static_cast<int>(__shfl_xor_sync(~0u, static_cast<double>(v), 1)));
  put(23, static_cast<int>(__shfl_xor_sync(~0u, static_cast<long long>(v) << 33, 1) >> 33));
  put(24, static_cast<int>(__half2float(__shfl_xor_sync(~0u, __float2half(static_cast<float>(lane)), 1))));
  put(25, static_cast<int>(warp_sum(static_cast<float>(lane))));
  put(26, static_cast<int>(warp_max<8>(static_cast<float>(lane))));
  // Two groups in different branches.
  if (lane < 16)
    put(27, __reduce_add_sync(0xFFFFu, lane));
  else
    put(27, __shfl_xor_sync(0xFFFF0000u, lane, 3));
  // Single lanes that come and go.
  int mine = lane;
  for (int i = 0; i < lane; ++i) mine += static_cast<int>(__ballot_sync(1u << lane, 1) >> lane);
  put(28, mine);
}
SELFTEST(collectives) { return test.launch(collectives, test.in<int>(0), test.out<int>(0)); }

// A word that is private to the warp changes hands.
__global__ void warp_word(int* out, int rounds) {
  SHARED(int, word, [32]);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = 0; i < rounds; ++i) {
    if (lane_id() == i % 32) word[warp] = i + 100 * warp;
    __syncwarp();
    if (lane_id() == (i + 7) % 32) out[threadIdx.x] = word[warp];
    __syncwarp();
  }
}
SELFTEST(warp_word) { return test.launch(warp_word, test.out<int>(0), static_cast<int>(test.number(0))); }

// Lanes hand on through global memory.
__global__ void through_global(int* out) {
  out[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp();
  const int v = out[threadIdx.x ^ 1];
  __syncwarp();
  out[threadIdx.x] = v + 1000;
}
SELFTEST(through_global) { return test.launch(through_global, test.out<int>(0)); }

// ---- barriers ----

__global__ void barrier_reductions(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  int v = __syncthreads_count(t % 3 == 0);
  v += 10000 * __syncthreads_and(t >= 0) + 20000 * __syncthreads_and(t > 0);
  v += 40000 * __syncthreads_or(t == 5) + 80000 * __syncthreads_or(t < 0);
  out[t] = v;
}
SELFTEST(barrier_reductions) { return test.launch(barrier_reductions, test.out<int>(0)); }

// Warp 0 fills a buffer for warp 1, over two named barriers; other warps go their own way.
__global__ void named_barriers(int* out, int rounds, bool arrive) {
  SHARED(int, s, [32]);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_id();
  for (int i = 0; i < rounds; ++i) {
    if (warp == 0) {
      if (i > 0) named_barrier(2, 64);  // empty
      s[lane] = i * 100 + lane;
      if (arrive)
        named_barrier_arrive(1, 64);  // full
      else
        named_barrier(1, 64);
    } else if (warp == 1) {
      named_barrier(1, 64);
      out[i * 32 + lane] = s[31 - lane];
      if (i + 1 < rounds) {
        if (arrive)
          named_barrier_arrive(2, 64);
        else
          named_barrier(2, 64);
      }
    }
  }
}
SELFTEST(named_barriers) {
  return test.launch(named_barriers, test.out<int>(0), static_cast<int>(test.number(0)), test.number(1) != 0);
}

// Many barriers: for the cost of a thread's visit.
__global__ void many_barriers(int* out, int count, bool warp_only) {
  for (int i = 0; i < count; ++i) {
    if (warp_only)
      __syncwarp();
    else
      __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = count;
}
SELFTEST(many_barriers) {
  return test.launch(many_barriers, test.out<int>(0), static_cast<int>(test.number(0)), test.number(1) != 0);
}

// ---- blocks together ----

// The last block to come adds up what all have written, and sets the counter back.
__global__ void last_block(const int* in, int* partial, int* counter, int* out, bool fence_by_one) {
  SHARED(int, last, [1]);
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
            blocks = static_cast<int>(gridDim.x);
  partial[at] = 2 * in[at];
  if (!fence_by_one) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if (fence_by_one) __threadfence();
    last[0] = atomicAdd(counter, 1) == blocks - 1;
  }
  __syncthreads();
  if (last[0] == 0) return;
  __threadfence();
  int sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * static_cast<int>(blockDim.x);
       i += static_cast<int>(blockDim.x))
    sum += partial[i];
  atomicAdd(out, sum);
  if (threadIdx.x == 0) *counter = 0;
}
SELFTEST(last_block) {
  return test.launch(last_block, test.in<int>(0), test.out<int>(0), test.out<int>(1), test.out<int>(2),
                     test.number(0) != 0);
}

// ---- atomics: one location per kind, every thread once ----

__global__ void integer_atomics(const int* in, int* i, unsigned* u, unsigned long long* l) {
  const int v = in[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&i[0], v);
  atomicSub(&i[1], v);
  atomicMax(&i[2], v);
  atomicMin(&i[3], v);
  atomicAnd(&i[4], v);
  atomicOr(&i[5], v);
  atomicXor(&i[6], v);
  const int old = atomicExch(&i[7], v);
  atomicAdd(&i[8], old);
  for (int seen = atomicAdd(&i[9], 0), before = ~seen; before != seen;) {  // a maximum by compare and swap
    before = seen;
    seen = atomicCAS(&i[9], before, before > v ? before : v);
  }
  atomicInc(&u[0], 9);
  atomicDec(&u[1], 9);
  atomicMax(&u[2], static_cast<unsigned>(v));
  atomicMin(&u[3], static_cast<unsigned>(v));
  atomicAdd(&l[0], static_cast<unsigned long long>(v) << 20);
  atomicMax(&l[1], static_cast<unsigned long long>(v));
  atomicCAS(&l[2], 0ull, 77ull);
}
SELFTEST(integer_atomics) {
  return test.launch(integer_atomics, test.in<int>(0), test.out<int>(0), test.out<unsigned>(1),
                     test.out<unsigned long long>(2));
}

__global__ void float_atomics(float* f, double* d, __half2* h, __nv_bfloat162* b) {
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd(h, __floats2half2_rn(1.0f, 2.0f));
  atomicAdd(b, __floats2bfloat162_rn(1.0f, -1.0f));
}
SELFTEST(float_atomics) {
  return test.launch(float_atomics, test.out<float>(0), test.out<double>(1), test.out<__half2>(2),
                     test.out<__nv_bfloat162>(3));
}

__global__ void shared_atomics(const int* in, int* out) {
  SHARED(int, bins, [16]);
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[in[threadIdx.x] & 15], 1);
  __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = bins[threadIdx.x];
}
SELFTEST(shared_atomics) { return test.launch(shared_atomics, test.in<int>(0), test.out<int>(0)); }

// ---- shared memory ----

template <int N>
SIMT_DEV int* buffer() {
  SHARED(int, s, [N]);  // one per instance of the template
  return s;
}
__global__ void shared_in_functions(int* out) {
  DYN_SHARED(buffers, 64);
  const int t = static_cast<int>(threadIdx.x);
  int* a = buffer<128>();
  int* b = buffer<256>();
  int* c = reinterpret_cast<int*>(buffers);
  a[t] = t;
  b[t] = 2 * t;
  c[t] = 4 * t;
  __syncthreads();
  out[t] = a[127 - t] + b[127 - t] + c[127 - t] + (a == b) + (buffer<128>() != a);
}
SELFTEST(shared_in_functions) { return test.launch(shared_in_functions, test.out<int>(0)); }

// A column of a tile: stride in words between neighbouring lanes.
__global__ void shared_columns(int* out, int stride) {
  DYN_SHARED(bytes, 16);
  int* s = reinterpret_cast<int*>(bytes);
  s[threadIdx.x * static_cast<unsigned>(stride)] = 1;
  __syncwarp();
  out[threadIdx.x] = s[threadIdx.x * static_cast<unsigned>(stride)];
}
SELFTEST(shared_columns) {
  return test.launch(shared_columns, test.out<int>(0), static_cast<int>(test.number(0)));
}

// ---- memory ----

__global__ void vectors(const unsigned char* in, unsigned char* out) {
  st16(out, ld16(in));
  st8(out + 16, ld8(in + 16));
  st4(out + 24, ld4(in + 24));
  st16_stream(out + 32, ld16_stream(in + 32));
  out[28] = __ldg(in + 28);
  out[29] = __ldcs(in + 29);
  __stcs(out + 30, __ldcg(in + 30));
  __stcg(out + 31, in[31]);
}
SELFTEST(vectors) { return test.launch(vectors, test.in<unsigned char>(0), test.out<unsigned char>(0)); }

// A constant table of the module is readable.
__constant__ const int kTable[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__global__ void table(const int* in, int* out) { out[threadIdx.x] = kTable[in[threadIdx.x] & 7]; }
SELFTEST(table) { return test.launch(table, test.in<int>(0), test.out<int>(0)); }

// One element, for every address that a view may or may not have.
__global__ void read_at(const int* in, int* out, int64_t offset) { out[0] = in[offset]; }
SELFTEST(read_at) { return test.launch(read_at, test.in<int>(0), test.out<int>(0), test.number(0)); }
__global__ void write_at(int* out, int64_t offset) { out[offset] = 1; }
SELFTEST(write_at) { return test.launch(write_at, test.out<int>(0), test.number(0)); }

}  // namespace
