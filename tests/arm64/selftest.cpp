// Integer and float products of the CPU kernels against sums in double precision: what tools/arm64_check.sh
// runs under qemu.  Exit code 1 when something is off.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/int8_kernels.h"
#include "cpu/linear.h"
#include "cpu/linear_int8.h"
#include "cpu/parallel.h"

using namespace inferx::cpu;

namespace {

std::mt19937 rng(0);
int failures = 0;

void expect(bool good, const char* what, const char* format, int64_t rows) {
  if (good) return;
  std::printf("%s: %s, %lld rows\n", format, what, static_cast<long long>(rows));
  ++failures;
}

struct Weight {
  std::vector<uint8_t> packed;
  PackedWeight handle;
  std::vector<float> values;  // [n][k]
};

// Random codes under scales of a usual size.
Weight random_weight(WeightFormat format, int64_t n, int64_t k) {
  const FormatTraits& t = traits_of(format);
  const int64_t row_bytes = is_float(format) ? k * t.source_bytes : k / t.block * t.source_bytes;
  std::vector<uint8_t> source(n * row_bytes);
  for (uint8_t& byte : source) byte = static_cast<uint8_t>(rng());
  for (int64_t at = 0; !is_float(format) && at < n * row_bytes; at += t.source_bytes) {
    if (t.scales == Scales::e8m0) {
      source[at] = 120 + rng() % 4;
    } else if (t.scales == Scales::k) {
      source[at + t.source_bytes - 1] = 0x20;  // float16 around 2^-7
    } else {
      source[at + 1] = 0x20;
      if (has_min(format)) source[at + 3] = 0x24;
    }
  }
  if (format == WeightFormat::f32) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n * k; ++i) {
      const float value = normal(rng);
      std::memcpy(source.data() + 4 * i, &value, 4);
    }
  } else if (is_float(format)) {
    for (int64_t i = 0; i < n * k; ++i) source[2 * i + 1] = 0x3c | (source[2 * i + 1] & 0x80);
  }
  Weight w;
  w.handle.format = format;
  w.handle.n = n;
  w.handle.k = k;
  w.packed.resize(w.handle.nbytes() + 64);
  uint8_t* memory = w.packed.data() + (64 - reinterpret_cast<uintptr_t>(w.packed.data()) % 64) % 64;
  w.handle.data = memory;
  pack_weight(source.data(), row_bytes, w.handle, memory);
  w.values.resize(n * k);
  dequantize(w.handle, w.values.data(), k);
  return w;
}

std::vector<float> random_rows(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(rng);
  return x;
}

// x as quantize_rows leaves it.
std::vector<float> rounded(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t g = 0; g < x.size(); g += kGroup) {
    float largest = 0;
    for (int i = 0; i < kGroup; ++i) largest = std::fmax(largest, std::fabs(x[g + i]));
    for (int i = 0; i < kGroup; ++i) {
      y[g + i] = largest / 127.0f * std::nearbyint(x[g + i] * (127.0f / largest));
    }
  }
  return y;
}

std::vector<float> multiply(const Weight& w, const std::vector<float>& x, int64_t rows, bool int8) {
  std::vector<float> out(rows * w.handle.n);
  if (!int8) {
    linear({x.data(), rows, w.handle.k, w.handle, nullptr, out.data(), w.handle.n});
    return out;
  }
  std::vector<float> memory(QuantizedRows::nbytes(rows, w.handle.k) / 4 + 16);
  const QuantizedRows q(memory.data(), rows, w.handle.k);
  run_with_team([&] {
    quantize_rows(x.data(), w.handle.k, q);
    linear_int8({q, w.handle, nullptr, out.data(), w.handle.n});
  });
  return out;
}

void check(WeightFormat format, bool int8) {
  const int64_t n = 70, k = 512;
  const char* name = traits_of(format).name;
  const Weight w = random_weight(format, n, k);
  const std::vector<float> x = random_rows(17 * k);
  const std::vector<float> seen = int8 ? rounded(x) : x;
  std::vector<float> first;
  for (const int64_t rows : {17, 9, 5, 2, 1}) {
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      const std::vector<float> y = multiply(w, x, rows, int8);
      if (first.empty()) first = y;
      expect(std::memcmp(y.data(), first.data(), y.size() * 4) == 0, "bits depend on the batch", name, rows);
      double worst = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double term = static_cast<double>(seen[r * k + i]) * w.values[c * k + i];
            sum += term;
            size += std::fabs(term);
          }
          worst = std::fmax(worst, std::fabs(y[r * n + c] - sum) / (size + 1e-30));
        }
      }
      expect(worst < 2e-6, int8 ? "integer products are off" : "float products are off", name, rows);
    }
  }
}

}  // namespace

int main() {
  for (int i = 0; i < kWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    check(format, false);
    if (has_int8_kernel(format)) check(format, true);
  }
  std::printf(failures ? "%d failures\n" : "all products are right\n", failures);
  return failures ? 1 : 0;
}
