#include "cpu/embedding.h"

#include "cpu/parallel.h"

namespace inferx::cpu {
namespace {

template <class Id>
void gather(const PackedWeight& table, const Id* ids, int64_t count, float* out, int64_t row_stride) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, table.k));
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) dequantize_row(table, ids[t], out + t * row_stride);
  });
}

}  // namespace

void embedding(const PackedWeight& table, const int64_t* ids, int64_t count, float* out, int64_t row_stride) {
  gather(table, ids, count, out, row_stride);
}

void embedding(const PackedWeight& table, const int32_t* ids, int64_t count, float* out, int64_t row_stride) {
  gather(table, ids, count, out, row_stride);
}

}  // namespace inferx::cpu
