// What this machine can do at most: bytes read per second, multiply-adds per second.  Loaded with ctypes.
#include <omp.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
#if defined(__x86_64__)
#define REGISTER(v) "+v"(v)
#else
#define REGISTER(v) "+w"(v)
#endif
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Words __attribute__((vector_size(64)));

extern "C" {

// Adds up `bytes` bytes (a multiple of 256 per thread is read), so that none of the reads can be left out.
uint64_t read_all(const char* data, int64_t bytes, int threads) {
  uint64_t sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    const int64_t share = bytes / threads / 256 * 256;
    const char* p = data + share * omp_get_thread_num();
    Words total[4] = {};
    for (int64_t i = 0; i < share; i += 256) {
      for (int j = 0; j < 4; ++j) {
        Words v;
        std::memcpy(&v, p + i + 64 * j, 64);
        total[j] += v;
      }
    }
    for (int j = 0; j < 4; ++j) {
      for (int l = 0; l < 8; ++l) sum += total[j][l];
    }
  }
  return sum;
}

// `rounds` times `multiply_adds_per_round` multiply-adds per thread, in chains enough to hide their latency.
int multiply_adds_per_round() { return 10 * kLanes; }
float multiply_add(int64_t rounds, int threads) {
  float sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    const Vector a = Vector{} + 0.999f, b = Vector{} + 0.001f;
    const auto step = [&](Vector& chain) {
      chain = chain * a + b;
      asm volatile("" : REGISTER(chain));  // the compiler must not find that the chains are equal
    };
    // Ten variables: an array would live in memory.
    Vector c0{}, c1{}, c2{}, c3{}, c4{}, c5{}, c6{}, c7{}, c8{}, c9{};
    for (int64_t i = 0; i < rounds; ++i) {
      step(c0), step(c1), step(c2), step(c3), step(c4);
      step(c5), step(c6), step(c7), step(c8), step(c9);
    }
    sum += (c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9)[0];
  }
  return sum;
}
}
