#include <cuda_runtime.h>

#include "kernels/copy_blocks.h"
#include "kernels/device_guard.h"

namespace inferx::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll =
    4;  // loads in flight per thread: 256 x 4 x 16 B = 16 KB per CTA, enough to cover latency

// One CTA copies kThreads * kUnroll vectors of one block of one tensor:
// blockIdx.x = pair, blockIdx.y = tensor, blockIdx.z = part of the block.
template <class Vector>
__global__ void __launch_bounds__(kThreads) copy_blocks_kernel(const __grid_constant__ CopyBlocksParams p) {
  const int64_t source = p.pairs[2 * static_cast<int64_t>(blockIdx.x)];
  const int64_t destination = p.pairs[2 * static_cast<int64_t>(blockIdx.x) + 1];
  if (source < 0 || source >= p.num_blocks || destination < 0 || destination >= p.num_blocks) return;

  char* const base = p.bases[blockIdx.y];
  const char* const from = base + source * p.block_stride;
  char* const to = base + destination * p.block_stride;

  const int64_t per_chunk = p.chunk_bytes / static_cast<int64_t>(sizeof(Vector));
  const int64_t total = p.chunks * per_chunk;
  const int64_t first = static_cast<int64_t>(blockIdx.z) * (kThreads * kUnroll) + threadIdx.x;

  Vector values[kUnroll];
  int64_t offsets[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int64_t at = first + i * kThreads;
    const int64_t chunk = p.chunks == 1 ? 0 : at / per_chunk;  // dense blocks: no division
    offsets[i] = chunk * p.chunk_stride + (at - chunk * per_chunk) * static_cast<int64_t>(sizeof(Vector));
    if (at < total) values[i] = *reinterpret_cast<const Vector*>(from + offsets[i]);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * kThreads < total) *reinterpret_cast<Vector*>(to + offsets[i]) = values[i];
  }
}

template <class Vector>
cudaError_t launch(const CopyBlocksParams& p, cudaStream_t stream) {
  constexpr int64_t kBytesPerCta = kThreads * kUnroll * static_cast<int64_t>(sizeof(Vector));
  const int64_t parts = (p.chunks * p.chunk_bytes + kBytesPerCta - 1) / kBytesPerCta;
  if (parts > 65535 || p.num_pairs > INT32_MAX) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(p.num_pairs), static_cast<unsigned>(p.num_tensors),
                  static_cast<unsigned>(parts));
  copy_blocks_kernel<Vector><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

int copy_blocks_vector_bytes(const CopyBlocksParams& p) {
  uint64_t bits = static_cast<uint64_t>(p.chunk_bytes) | static_cast<uint64_t>(p.block_stride);
  if (p.chunks > 1) bits |= static_cast<uint64_t>(p.chunk_stride);
  for (int i = 0; i < p.num_tensors; ++i) bits |= reinterpret_cast<uint64_t>(p.bases[i]);
  for (int bytes = 16; bytes > 1; bytes /= 2) {
    if (bits % bytes == 0) return bytes;
  }
  return 1;
}

Error launch_copy_blocks(const CopyBlocksParams& p, int device, void* stream) {
  const DeviceGuard guard(device);
  if (guard.error() != cudaSuccess) return guard.error();
  if (p.num_pairs == 0 || p.num_tensors == 0 || p.chunks * p.chunk_bytes == 0) return kSuccess;
  if (p.num_tensors > kMaxCopyTensors) return cudaErrorInvalidValue;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (copy_blocks_vector_bytes(p)) {
    case 16:
      return launch<uint4>(p, s);
    case 8:
      return launch<uint2>(p, s);
    case 4:
      return launch<uint32_t>(p, s);
    case 2:
      return launch<uint16_t>(p, s);
    default:
      return launch<uint8_t>(p, s);
  }
}

}  // namespace inferx::cuda
