// A rectangular part of global memory and its dense image in shared memory: what a bulk copy moves.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "simt/host/site.h"
#include "simt/swizzle.h"

namespace simt::host {

// What make_tensor_map() puts into a CUtensorMap in this build.
struct TensorMap {
  uint64_t magic;
  char* base;
  uint64_t dims[5], strides[4];
  uint16_t box[5];
  uint8_t element_bytes, rank, swizzle;
};
constexpr uint64_t kTensorMapMagic = 0x70616d726f736e74;
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "it is passed as one");

// A plain stretch of bytes is the box of a "tensor" of rank 0.
struct Box {
  char* shared;
  char* global;  // rank 0
  uint32_t bytes;
  int rank;
  TensorMap map;
  int coords[5];

  // Calls body(offset of a row in the dense box, its bytes inside the tensor, where they lie, how many bytes
  // of the row come before them) for each row of the box that has elements inside the tensor.
  template <class Body>
  void for_each_row(const Body& body) const;
  uint32_t swizzled(uint32_t shared_offset) const {  // of an address, by the map's swizzle
    return shared_offset ^ ((shared_offset >> 7 & ((1u << map.swizzle) - 1)) << 4);
  }
};

Box plain_box(void* shared, const void* global, uint32_t bytes);
// Fails with `op` in the message if the map is none, of another rank, or the address badly aligned.
Box tensor_box(void* shared, const CUtensorMap* map, int rank, const int* coords, const char* op, Site at);

// global -> shared, zeros outside; and shared -> a buffer, and from there -> global.
void load_box(const Box& box);
void read_box(const Box& box, char* data);
void write_box(const Box& box, const char* data);
// The checks of its accesses to global memory by the current thread.
void check_box_global(const Box& box, unsigned flags, const Where& at);

template <class Body>
void Box::for_each_row(const Body& body) const {
  if (rank == 0) {
    body(0u, bytes, global, 0u);
    return;
  }
  const uint32_t element = map.element_bytes, row_bytes = map.box[0] * element;
  const int64_t first = coords[0] < 0 ? -static_cast<int64_t>(coords[0]) : 0;
  const int64_t end = static_cast<int64_t>(map.dims[0]) - coords[0];
  const int64_t last = end < map.box[0] ? end : map.box[0];  // elements [first, last) of a row are inside
  uint32_t index[5] = {};
  for (uint32_t row = 0; row * row_bytes < bytes; ++row) {
    bool inside = first < last;
    char* p = map.base + (coords[0] + first) * element;
    for (int i = 1; i < rank; ++i) {
      const int64_t x = static_cast<int64_t>(coords[i]) + index[i];
      inside &= x >= 0 && x < static_cast<int64_t>(map.dims[i]);
      p += x * static_cast<int64_t>(map.strides[i - 1]);
    }
    if (inside) {
      body(row * row_bytes, static_cast<uint32_t>(last - first) * element, p,
           static_cast<uint32_t>(first) * element);
    }
    for (int i = 1; i < rank && ++index[i] == map.box[i]; ++i) index[i] = 0;
  }
}

}  // namespace simt::host
