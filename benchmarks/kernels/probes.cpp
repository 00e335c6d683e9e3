// What this machine can do at most: bytes read per second, multiply-adds per second.  Loaded with ctypes.
#include <omp.h>

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

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
// The same with products of 8-bit integers summed in 32 bits: VNNI, or its three instructions in AVX2.
// Zero where there are none.
#if defined(__AVX512VNNI__)
typedef __m512i Sums;
#define INT8_STEP(c) asm volatile("vpdpbusd %1, %1, %0" : "+v"(c) : "v"(a))
#elif defined(__AVX2__)
typedef __m256i Sums;
#define INT8_STEP(c)                                                            \
  c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones)); \
  asm volatile("" : "+x"(c), "+x"(a))
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t Sums;
#define INT8_STEP(c)      \
  c = vdotq_s32(c, a, a); \
  asm volatile("" : "+w"(c))
#endif
#if defined(INT8_STEP)
int int8_products_per_round() { return 12 * static_cast<int>(sizeof(Sums)); }
int int8_dot(int64_t rounds, int threads) {
  int sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  {
    alignas(64) signed char bytes[sizeof(Sums)];
    for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = static_cast<signed char>(i % 3);
#if defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t a = vld1q_s8(bytes);
#else
    Sums a;
    std::memcpy(&a, bytes, sizeof a);
#endif
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    const Sums ones = _mm256_set1_epi16(1);
#endif
    Sums c0{}, c1{}, c2{}, c3{}, c4{}, c5{}, c6{}, c7{}, c8{}, c9{}, c10{}, c11{};
    for (int64_t i = 0; i < rounds; ++i) {
      INT8_STEP(c0);
      INT8_STEP(c1);
      INT8_STEP(c2);
      INT8_STEP(c3);
      INT8_STEP(c4);
      INT8_STEP(c5);
      INT8_STEP(c6);
      INT8_STEP(c7);
      INT8_STEP(c8);
      INT8_STEP(c9);
      INT8_STEP(c10);
      INT8_STEP(c11);
    }
    const Sums all[12] = {c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11};
    int lanes[sizeof all / sizeof(int)];
    std::memcpy(lanes, all, sizeof all);
    for (int lane : lanes) sum += lane & 1;
  }
  return sum;
}
#else
int int8_products_per_round() { return 0; }
int int8_dot(int64_t, int) { return 0; }
#endif
}
