// Tensor maps: what the host tells the copy engine about a tensor and the boxes to be copied (see tma.h).
#pragma once
#include <cuda.h>  // CUtensorMap; the driver is not linked

#include "simt/platform.h"
#include "simt/swizzle.h"

namespace simt {

struct TensorMapSpec {
  const void* base;     // multiple of 16
  int element_bytes;    // 1, 2 or 4
  int rank;             // 2 to 5
  uint64_t dims[5];     // elements, innermost first; 1 to 2^32
  uint64_t strides[4];  // bytes between neighbours in dims[1] ..; multiples of 16 below 2^40
  uint32_t
      box[5];  // elements, 1 to 256; a row of the box is a multiple of 16 bytes and fits the swizzle's span
  Swizzle swizzle;
};

// What is wrong with it, or nullptr.  The rules are cuTensorMapEncodeTiled's, and one more: rows of a
// swizzled box are one span, not shorter, for no document says how shorter ones lie.
inline const char* tensor_map_error(const TensorMapSpec& s) {
  if (s.element_bytes != 1 && s.element_bytes != 2 && s.element_bytes != 4)
    return "elements have 1, 2 or 4 bytes";
  if (s.rank < 2 || s.rank > 5) return "rank is 2 to 5";
  if (s.base == nullptr || reinterpret_cast<uintptr_t>(s.base) % 16 != 0)
    return "the base is not a multiple of 16";
  for (int i = 0; i < s.rank; ++i) {
    if (s.dims[i] < 1 || s.dims[i] > uint64_t{1} << 32) return "dimensions are 1 to 2^32";
    if (s.box[i] < 1 || s.box[i] > 256) return "sides of a box are 1 to 256";
  }
  for (int i = 0; i + 1 < s.rank; ++i) {
    if (s.strides[i] % 16 != 0 || s.strides[i] >= uint64_t{1} << 40)
      return "strides are multiples of 16 below 2^40";
  }
  const uint32_t row = s.box[0] * static_cast<uint32_t>(s.element_bytes);
  if (row % 16 != 0) return "a row of the box is not a multiple of 16 bytes";
  if (s.swizzle != Swizzle::none && row != static_cast<uint32_t>(swizzle_bytes(s.swizzle))) {
    return "a row of the box is not one span of its swizzle";
  }
  return nullptr;
}

constexpr int kBadTensorMap = 1;  // cudaErrorInvalidValue

#ifdef SIMT_CPU
int make_tensor_map(CUtensorMap* map, const TensorMapSpec& spec);  // host/tensor_map.cc
#else

// 0; kBadTensorMap, of which tensor_map_error() tells more; or a CUDA error.
inline int make_tensor_map(CUtensorMap* map, const TensorMapSpec& s) {
  if (tensor_map_error(s) != nullptr) return kBadTensorMap;
  // Asked for at run time, so that nothing links to the driver and machines without one load the module.
  static void* const encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : nullptr;
  }();
  if (encode == nullptr) return static_cast<int>(cudaErrorNotSupported);
  const CUtensorMapDataType type = s.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : s.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  cuuint64_t dims[5], strides[4];
  cuuint32_t box[5];
  for (int i = 0; i < s.rank; ++i) dims[i] = s.dims[i], box[i] = s.box[i];
  for (int i = 0; i + 1 < s.rank; ++i) strides[i] = s.strides[i];
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      map, type, static_cast<cuuint32_t>(s.rank), const_cast<void*>(s.base), dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(s.swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? 0 : kBadTensorMap;
}

#endif

// The common case: a row-major matrix [rows, cols] of a 16-bit type in boxes with 128-byte swizzle.
inline int make_tensor_map_bf16(CUtensorMap* map, const void* base, uint64_t rows, uint64_t cols,
                                uint64_t row_bytes, uint32_t box_rows, uint32_t box_cols) {
  return make_tensor_map(map, {base, 2, 2, {cols, rows}, {row_bytes}, {box_cols, box_rows}, Swizzle::b128});
}

}  // namespace simt
