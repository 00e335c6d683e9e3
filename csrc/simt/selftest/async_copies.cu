// cp.async, mbarriers, bulk copies and tensor tiles: probes, and kernels with one rule broken on purpose
// (`bug`; 0 is the legal kernel).
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

// ---- cp.async
// -------------------------------------------------------------------------------------------------

// Each thread copies N bytes of which `valid` (one number a thread) come from `in`; out: the N bytes.
template <int N>
__global__ void cp_async_kernel(const unsigned char* in, const int* valid, unsigned char* out) {
  SHARED(uint4, raw, [128]);
  unsigned char* tile = reinterpret_cast<unsigned char*>(raw);
  const int t = threadIdx.x;
  cp_async<N>(tile + t * N, valid[t] > 0 ? in + t * N : nullptr, valid[t]);
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = 0; i < N; ++i) out[t * N + i] = tile[t * N + i];
}
SELFTEST(cp_async) {
  const auto go = [&](auto kernel) {
    return test.launch(kernel, test.in<unsigned char>(0), test.in<int>(1), test.out<unsigned char>(0));
  };
  return test.number(0) == 4   ? go(cp_async_kernel<4>)
         : test.number(0) == 8 ? go(cp_async_kernel<8>)
                               : go(cp_async_kernel<16>);
}

// A pipeline of three stages over `steps` tiles of 128 ints; out[step] = what the next thread's copy brought.
__global__ void cp_async_ring_kernel(const int* in, int* out, int steps, int bug) {
  constexpr int kStages = 3;
  SHARED(int, tile, [kStages][128]);
  const int t = threadIdx.x;
  const auto load = [&](int step) {
    if (step < steps) cp_async<4>(&tile[step % kStages][t], in + step * 128 + t);
    cp_async_commit();
  };
  for (int s = 0; s < kStages - 1; ++s) load(s);
  for (int step = 0; step < steps; ++step) {
    if (bug == 1) {
      cp_async_wait<kStages - 1>();  // one group too few
    } else if (bug != 2) {
      cp_async_wait<kStages - 2>();
    }
    if (bug != 3) __syncthreads();
    load(bug == 4 ? step : step + kStages - 1);  // 4: into the tile that is being read
    out[step * 128 + t] = tile[step % kStages][(t + 1) % 128];
    if (bug == 5) break;  // legal: what is left in flight is never read
  }
}
SELFTEST(cp_async_ring) {
  return test.launch(cp_async_ring_kernel, test.in<int>(0), test.out<int>(0),
                     static_cast<int>(test.number(0)), static_cast<int>(test.number(1)));
}

// Bad arguments of cp.async.
__global__ void bad_cp_async_kernel(const unsigned char* in, int* out, int bug) {
  SHARED(uint4, raw, [4]);
  unsigned char* tile = reinterpret_cast<unsigned char*>(raw);
  if (bug == 1) cp_async<16>(tile + 8, in);
  if (bug == 2) cp_async<16>(tile, in + 4);
  if (bug == 3) cp_async<16>(tile, in, 17);
  if (bug == 4) cp_async<8>(tile, in + 64);  // past the end of in
  if (bug == 5) cp_async<16>(tile + 64, in);
  if (bug == 6) cp_async<16>(out, in);  // not shared memory
  cp_async_commit();
  cp_async_wait<0>();
}
SELFTEST(bad_cp_async) {
  return test.launch(bad_cp_async_kernel, test.in<unsigned char>(0), test.out<int>(0),
                     static_cast<int>(test.number(0)));
}

// Producer warp copies with cp.async and lets an mbarrier tell the consumer warp.
__global__ void cp_async_mbarrier_kernel(const int* in, int* out, int steps, int bug) {
  SHARED(int, tile, [2][32]);
  SHARED(uint64_t, full, [2]);
  SHARED(uint64_t, empty, [2]);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) mbar_init(&full[s], 32), mbar_init(&empty[s], 32);
  }
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const int s = step % 2, parity = step / 2 & 1;
    if (threadIdx.x < 32) {
      if (bug != 1) mbar_wait(&empty[s], parity ^ 1);
      cp_async<4>(&tile[s][lane], in + step * 32 + lane);
      if (bug == 2) {
        mbar_arrive(&full[s]);  // says nothing of the copy
      } else {
        cp_async_mbar_arrive_noinc(&full[s]);
      }
    } else {
      mbar_wait(&full[s], parity);
      out[step * 32 + lane] = tile[s][31 - lane];
      mbar_arrive(&empty[s]);
    }
  }
  if (threadIdx.x < 32) cp_async_wait<0>();
}
SELFTEST(cp_async_mbarrier) {
  return test.launch(cp_async_mbarrier_kernel, test.in<int>(0), test.out<int>(0),
                     static_cast<int>(test.number(0)), static_cast<int>(test.number(1)));
}

// ---- mbarriers
// ------------------------------------------------------------------------------------------------

// Two warps hand 32 ints to and fro `rounds` times through one tile, by mbarriers alone; out[lane] counts the
// rounds.
__global__ void mbarrier_kernel(int* out, int rounds, int bug) {
  SHARED(int, tile, [32]);
  SHARED(uint64_t, turn, [2]);  // turn[w]: warp w has written
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    mbar_init(&turn[0], bug == 1 ? 33 : 32);  // 1: one arrival never comes
    mbar_init(&turn[1], bug == 2 ? 31 : 32);  // 2: one arrival too many
    if (bug == 3) mbar_init(&turn[1], 32);    // 3: twice
  }
  if (bug != 4) __syncthreads();
  for (int i = 0; i < rounds; ++i) {
    if (warp == 0) {
      if (i > 0 && bug != 5) mbar_wait(&turn[1], (i - 1) & 1);
      tile[31 - lane] = i == 0 ? lane : tile[31 - lane] + 1;
      mbar_arrive(&turn[0]);
    } else {
      if (bug == 6) {  // the parity of the phase before
        mbar_wait(&turn[0], (i & 1) ^ 1);
      } else {
        if (i % 2 == 0) {
          mbar_wait(&turn[0], 0);
        } else {
          while (!mbar_try_wait(&turn[0], 1)) {
          }
        }
      }
      tile[lane] += 1;
      mbar_arrive(&turn[1]);
    }
  }
  if (warp == 0) {
    mbar_wait(&turn[1], (rounds - 1) & 1);
    out[lane] = tile[lane];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbar_inval(&turn[0]);
    turn[0] = 7;  // memory like any other again
    if (bug == 7) mbar_arrive(&turn[0]);
    if (bug == 8) mbar_init(&turn[1], 1);  // still alive
    if (bug == 9) mbar_init(&turn[0], 0);
    mbar_init(&turn[0], 1);
    mbar_arrive(&turn[0]);
    mbar_wait(&turn[0], 0);
  }
}
SELFTEST(mbarrier) {
  return test.launch(mbarrier_kernel, test.out<int>(0), static_cast<int>(test.number(0)),
                     static_cast<int>(test.number(1)));
}

// ---- bulk copies
// ----------------------------------------------------------------------------------------------

// Thread 0 of 64 loads 512 bytes into each of `steps` turns of one slot; all threads add 1 and thread 0
// stores them.
__global__ void bulk_kernel(const int* in, int* out, int steps, int bug) {
  SHARED(uint4, raw, [33]);
  SHARED(uint64_t, full, [1]);
  int* tile = reinterpret_cast<int*>(raw);
  const int t = threadIdx.x;
  if (t == 0) {
    mbar_init(full, 1);
    if (bug != 1) mbar_fence_init();
  }
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    if (t == 0) {
      mbar_arrive_expect_tx(full, bug == 2 ? 528 : bug == 3 ? 496 : 512);
      bulk_load(bug == 4 ? tile + 1 : tile, in + step * 128, bug == 5 ? 510 : 512, full);
    }
    if (bug == 6 && step == 0) tile[128] = tile[5];  // reads what is in flight
    if (bug != 7) mbar_wait(full, step & 1);
    const int v0 = tile[t] + 1, v1 = tile[64 + t] + 1;
    tile[t] = v0;
    tile[64 + t] = v1;
    if (bug != 8) fence_proxy_async();
    if (bug != 9) __syncthreads();
    if (t == 0) {
      bulk_store(out + step * 128, tile, 512);
      bulk_commit();
      if (bug != 10) bulk_wait_read<0>();  // else the next load overwrites what the store is reading
    }
  }
  if (bug == 11 && t == 0) {  // nobody waits for it
    mbar_arrive_expect_tx(full, 512);
    bulk_load(tile, in, 512, full);
  }
}
SELFTEST(bulk) {
  return test.launch(bulk_kernel, test.in<int>(0), test.out<int>(0), static_cast<int>(test.number(0)),
                     static_cast<int>(test.number(1)));
}

// The order of a store's read and write: thread 0 stores, changes the source after bulk_wait_read, and reads
// the target after bulk_wait.
__global__ void bulk_store_kernel(int* out, int* copy, int bug) {
  SHARED(uint4, raw, [1]);
  int* tile = reinterpret_cast<int*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) tile[i] = 10 + i;
    fence_proxy_async();
    bulk_store(out, tile, 16);
    if (bug == 1) tile[0] = 99;  // the store may not have read it yet
    bulk_commit();
    if (bug != 2) bulk_wait_read<0>();  // else the block ends first
    if (bug == 0) {
      tile[0] = 77;  // now it has
      bulk_wait<0>();
      for (int i = 0; i < 4; ++i) copy[i] = out[i];
    }
  }
}
SELFTEST(bulk_store) {
  return test.launch(bulk_store_kernel, test.out<int>(0), test.out<int>(1), static_cast<int>(test.number(0)));
}

// ---- tensor tiles
// ---------------------------------------------------------------------------------------------

// numbers: rank, element bytes, swizzle, then dims[5], strides[4], box[5], coords[5], bug, 1 to ask for
// another rank than the map's, bytes to add to the base
TensorMapSpec spec_of(const simt::selftest::Test& test, const void* base) {
  TensorMapSpec spec{};
  spec.base = static_cast<const char*>(base) + test.number(24);
  spec.rank = static_cast<int>(test.number(0));
  spec.element_bytes = static_cast<int>(test.number(1));
  spec.swizzle = static_cast<Swizzle>(test.number(2));
  for (size_t i = 0; i < 5; ++i) {
    spec.dims[i] = static_cast<uint64_t>(test.number(3 + i));
    if (i < 4) spec.strides[i] = static_cast<uint64_t>(test.number(8 + i));
    spec.box[i] = static_cast<uint32_t>(test.number(12 + i));
  }
  return spec;
}
struct Coords {
  int x[5];
};
Coords coords_of(const simt::selftest::Test& test) {
  Coords coords{};
  for (size_t i = 0; i < 5; ++i) coords.x[i] = static_cast<int>(test.number(17 + i));
  return coords;
}

// out: the box's bytes as they lie in shared memory.
template <int Rank>
__global__ void tma_load_kernel(const __grid_constant__ CUtensorMap map, Coords c, unsigned char* out,
                                int bytes, int bug) {
  DYN_SHARED(tile, 1024);
  SHARED(uint64_t, full, [1]);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map);
    mbar_init(full, 1);
    mbar_fence_init();
    mbar_arrive_expect_tx(full, static_cast<uint32_t>(bytes));
    unsigned char* dst = bug == 1 ? tile + 128 : tile;
    if constexpr (Rank == 2) tma_load_2d(dst, &map, full, c.x[0], c.x[1]);
    if constexpr (Rank == 3) tma_load_3d(dst, &map, full, c.x[0], c.x[1], c.x[2]);
    if constexpr (Rank == 4) tma_load_4d(dst, &map, full, c.x[0], c.x[1], c.x[2], c.x[3]);
    if constexpr (Rank == 5) tma_load_5d(dst, &map, full, c.x[0], c.x[1], c.x[2], c.x[3], c.x[4]);
  }
  __syncthreads();
  if (bug != 2) mbar_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) out[i] = tile[i];
}
SELFTEST(tma_load) {
  CUtensorMap map;
  const TensorMapSpec spec = spec_of(test, test.in<void>(0));
  if (const int error = make_tensor_map(&map, spec)) return error;
  int bytes = spec.element_bytes;
  for (int i = 0; i < spec.rank; ++i) bytes *= static_cast<int>(spec.box[i]);
  const auto go = [&](auto kernel) {
    return test.launch(kernel, map, coords_of(test), test.out<unsigned char>(0), bytes,
                       static_cast<int>(test.number(22)));
  };
  switch (spec.rank + test.number(23)) {
    case 2:
      return go(tma_load_kernel<2>);
    case 3:
      return go(tma_load_kernel<3>);
    case 4:
      return go(tma_load_kernel<4>);
    default:
      return go(tma_load_kernel<5>);
  }
}

// in: the box's bytes as they lie in shared memory; they go to the tensor.
template <int Rank>
__global__ void tma_store_kernel(const __grid_constant__ CUtensorMap map, Coords c, const unsigned char* in,
                                 int bytes, int bug) {
  DYN_SHARED(tile, 1024);
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) tile[i] = in[i];
  if (bug != 1) fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    if constexpr (Rank == 2) tma_store_2d(&map, tile, c.x[0], c.x[1]);
    if constexpr (Rank == 3) tma_store_3d(&map, tile, c.x[0], c.x[1], c.x[2]);
    if constexpr (Rank == 4) tma_store_4d(&map, tile, c.x[0], c.x[1], c.x[2], c.x[3]);
    if constexpr (Rank == 5) tma_store_5d(&map, tile, c.x[0], c.x[1], c.x[2], c.x[3], c.x[4]);
    bulk_commit();
    if (bug != 2) bulk_wait_read<0>();
  }
}
SELFTEST(tma_store) {
  CUtensorMap map;
  const TensorMapSpec spec = spec_of(test, test.out<void>(0));
  if (const int error = make_tensor_map(&map, spec)) return error;
  int bytes = spec.element_bytes;
  for (int i = 0; i < spec.rank; ++i) bytes *= static_cast<int>(spec.box[i]);
  const auto go = [&](auto kernel) {
    return test.launch(kernel, map, coords_of(test), test.in<unsigned char>(0), bytes,
                       static_cast<int>(test.number(22)));
  };
  switch (spec.rank) {
    case 2:
      return go(tma_store_kernel<2>);
    case 3:
      return go(tma_store_kernel<3>);
    case 4:
      return go(tma_store_kernel<4>);
    default:
      return go(tma_store_kernel<5>);
  }
}

}  // namespace
