// The rows of a tensor with any strides: all dimensions but the last, flattened.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define INFERX_HOST_DEVICE __host__ __device__
#else
#define INFERX_HOST_DEVICE
#endif

namespace inferx {

struct Rows {
  static constexpr int kMaxDims = 8;
  int64_t count = 1;
  int ndim = 0;  // after merging neighbours, outermost first; 0 or 1 for nearly every tensor
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims];  // in elements

  // Where row `row` begins, in elements from the tensor's start.
  INFERX_HOST_DEVICE int64_t offset(int64_t row) const {
    int64_t at = 0;
    for (int i = ndim - 1; i > 0; --i) {
      at += row % size[i] * stride[i];
      row /= size[i];
    }
    return ndim > 0 ? at + row * stride[0] : 0;
  }
};

// `ndim` leading dimensions; neighbours that step evenly into each other become one.
inline Rows make_rows(int ndim, const int64_t* shape, const int64_t* strides) {
  Rows rows;
  for (int i = 0; i < ndim; ++i) {
    rows.count *= shape[i];
    if (shape[i] == 1) continue;
    if (rows.ndim > 0 && rows.stride[rows.ndim - 1] == shape[i] * strides[i]) {
      rows.size[rows.ndim - 1] *= shape[i];
      rows.stride[rows.ndim - 1] = strides[i];
    } else {
      rows.size[rows.ndim] = shape[i];
      rows.stride[rows.ndim++] = strides[i];
    }
  }
  return rows;
}

}  // namespace inferx
