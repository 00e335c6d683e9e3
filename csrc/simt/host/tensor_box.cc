#include "simt/host/tensor_box.h"

#include <cstring>

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/global_memory.h"
#include "simt/tensor_map.h"

namespace simt {

int make_tensor_map(CUtensorMap* map, const TensorMapSpec& spec) {
  if (tensor_map_error(spec) != nullptr) return kBadTensorMap;
  host::TensorMap m{};
  m.magic = host::kTensorMapMagic;
  m.base = static_cast<char*>(const_cast<void*>(spec.base));
  for (int i = 0; i < spec.rank; ++i) {
    m.dims[i] = spec.dims[i];
    m.box[i] = static_cast<uint16_t>(spec.box[i]);
    if (i > 0) m.strides[i - 1] = spec.strides[i - 1];
  }
  m.element_bytes = static_cast<uint8_t>(spec.element_bytes);
  m.rank = static_cast<uint8_t>(spec.rank);
  m.swizzle = static_cast<uint8_t>(spec.swizzle);
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &m, sizeof m);
  return 0;
}

namespace host {

Box plain_box(void* shared, const void* global, uint32_t bytes) {
  Box box{};
  box.shared = static_cast<char*>(shared);
  box.global = static_cast<char*>(const_cast<void*>(global));
  box.bytes = bytes;
  return box;
}

Box tensor_box(void* shared, const CUtensorMap* map, int rank, const int* coords, const char* op, Site at) {
  Box box = plain_box(shared, nullptr, 0);
  std::memcpy(&box.map, map, sizeof box.map);
  if (box.map.magic != kTensorMapMagic) fail(at, "%s: this is no tensor map", op);
  if (box.map.rank != rank) fail(at, "%s: the tensor map has %d dimensions", op, box.map.rank);
  box.rank = rank;
  box.bytes = box.map.element_bytes;
  for (int i = 0; i < rank; ++i) {
    box.coords[i] = coords[i];
    box.bytes *= box.map.box[i];
  }
  const auto swizzle = static_cast<Swizzle>(box.map.swizzle);
  const uint32_t align = swizzle == Swizzle::none ? 128 : static_cast<uint32_t>(swizzle_align(swizzle));
  const uint32_t offset = shared_offset(shared, at);
  if (offset % align != 0) {
    fail(at, "%s: the shared address is not %u-byte aligned: %s", op, align,
         current->block->shared.describe(offset).c_str());
  }
  return box;
}

namespace {

// Calls body(shared address, offset in the row's data, bytes) for the 16-byte chunks, or parts of such, of
// `bytes` bytes at `offset` of the dense box.
template <class Body>
void for_each_chunk(const Box& box, uint32_t offset, uint32_t bytes, const Body& body) {
  SharedMemory& shared = current->block->shared;
  const auto start = static_cast<uint32_t>(shared.offset(box.shared));
  for (uint32_t done = 0; done < bytes;) {
    const uint32_t at = start + offset + done;
    const uint32_t n = box.map.swizzle == 0          ? bytes
                       : bytes - done < 16 - at % 16 ? bytes - done
                                                     : 16 - at % 16;
    body(shared.at(box.swizzled(at)), done, n);
    done += n;
  }
}

}  // namespace

void load_box(const Box& box) {
  std::memset(box.shared, 0, box.bytes);
  box.for_each_row([&](uint32_t offset, uint32_t bytes, const char* global, uint32_t before) {
    for_each_chunk(box, offset + before, bytes,
                   [&](char* shared, uint32_t done, uint32_t n) { std::memcpy(shared, global + done, n); });
  });
}

void read_box(const Box& box, char* data) {
  for_each_chunk(box, 0, box.bytes,
                 [&](const char* shared, uint32_t done, uint32_t n) { std::memcpy(data + done, shared, n); });
}

void write_box(const Box& box, const char* data) {
  box.for_each_row([&](uint32_t offset, uint32_t bytes, char* global, uint32_t before) {
    std::memcpy(global, data + offset + before, bytes);
  });
}

void check_box_global(const Box& box, unsigned flags, const Where& at) {
  box.for_each_row([&](uint32_t, uint32_t bytes, const char* global, uint32_t) {
    access_global(global, bytes, flags, at);
  });
}

}  // namespace host
}  // namespace simt
