#include "kernels/embedding.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

// One CTA a row.
template <class Vector, class Id>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const __grid_constant__ EmbeddingParams p) {
  const int64_t id = static_cast<const Id*>(p.ids)[blockIdx.x];
  const bool known = id >= 0 && id < p.num_rows;
  const auto* from = reinterpret_cast<const Vector*>(p.table + (known ? id : 0) * p.table_stride);
  auto* to = reinterpret_cast<Vector*>(p.out + blockIdx.x * p.out_stride);
  const int64_t vectors = p.row_bytes / static_cast<int64_t>(sizeof(Vector));
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) to[i] = known ? from[i] : Vector{};
}

}  // namespace

Error launch_embedding(const EmbeddingParams& p, void* stream) {
  if (p.count == 0 || p.row_bytes == 0) return kSuccess;
  const uintptr_t bits = reinterpret_cast<uintptr_t>(p.out) | reinterpret_cast<uintptr_t>(p.table) |
                         static_cast<uintptr_t>(p.row_bytes | p.out_stride | p.table_stride);
  const auto go = [&](auto vector) {
    using V = decltype(vector);
    const dim3 grid(static_cast<unsigned>(p.count));
    return p.ids_are_64_bit ? launch(embedding_kernel<V, int64_t>, grid, dim3(kThreads), 0, stream, p)
                            : launch(embedding_kernel<V, int32_t>, grid, dim3(kThreads), 0, stream, p);
  };
  if (bits % 16 == 0) return go(uint4{});
  if (bits % 4 == 0) return go(uint32_t{});
  if (bits % 2 == 0) return go(uint16_t{});
  return go(uint8_t{});
}

}  // namespace inferx::cuda
