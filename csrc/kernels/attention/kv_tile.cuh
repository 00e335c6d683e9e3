// Keys or values of one KV head on their way from the paged cache into shared memory.
//
// A block holds a multiple of 8 keys, so 8 keys that begin at a multiple of 8 (an octet) always share a
// block: the block table is read, and divided by the block size, once an octet.
#pragma once
#include <cuda_fp8.h>

#include "kernels/attention/params.h"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;

constexpr int kTile = 64;  // keys that the kernels take in one step; splits are whole tiles
constexpr int kOctet = 8;

// Rows of shared memory with an odd number of 16-byte chunks: the 8 rows that ldmatrix reads at once start in
// different banks for every head_dim.
template <class Cache, int D>
constexpr int kRowBytes = (D * static_cast<int>(sizeof(Cache)) / 16 | 1) * 16;

// Where K or V of one KV head lies.
struct KvSource {
  const unsigned char* base;          // key 0 of block 0
  int64_t stride_block, stride_slot;  // in bytes
  int row_bytes;                      // head_dim's bytes; the rest of a row in shared memory is zero
};

template <class Cache>
SIMT_DEV KvSource key_source(const PagedAttentionParams& p, int64_t kv_head) {
  constexpr int64_t size = sizeof(Cache);
  return {static_cast<const unsigned char*>(p.key_cache) + kv_head * p.key_stride_head * size,
          p.key_stride_block * size, p.key_stride_slot * size, static_cast<int>(p.head_dim * size)};
}
template <class Cache>
SIMT_DEV KvSource value_source(const PagedAttentionParams& p, int64_t kv_head) {
  constexpr int64_t size = sizeof(Cache);
  return {static_cast<const unsigned char*>(p.value_cache) + kv_head * p.value_stride_head * size,
          p.value_stride_block * size, p.value_stride_slot * size, static_cast<int>(p.head_dim * size)};
}

// The block of 8 keys and the slot of their first; block -1: absent (nothing wanted there, or no such block).
struct Octet {
  int32_t block, slot;
};

// Octet number `octet` of a request whose keys [begin, end) are wanted.  `table` is its row of block_tables,
// and has entries up to `end`.
SIMT_DEV Octet find_octet(const PagedAttentionParams& p, const int32_t* table, int octet, int begin,
                          int end) {
  if (octet >= (end + kOctet - 1) / kOctet || octet * kOctet + kOctet <= begin) return {-1, 0};
  const int per_block = static_cast<int>(p.block_size) / kOctet, index = octet / per_block;
  const int32_t block = table[index];
  if (block < 0 || block >= p.num_blocks) return {-1, 0};
  return {block, (octet - index * per_block) * kOctet};
}

// The octets of a warp's next tiles, one a lane, so that the table is read once in 32 octets and well before
// the copies that need it.  Of every tile (of kKeys keys) the warp takes `kOctets` octets from `first_octet`
// on.
template <int kOctets, int kKeys = kTile>
class OctetWindow {
 public:
  static constexpr int kTiles = 32 / kOctets;

  // Makes `tile` of a request, whose keys [begin, end) are wanted, part of the window.  Warp-uniform.
  SIMT_DEV void seek(const PagedAttentionParams& p, int request, int tile, int first_octet, int begin,
                     int end) {
    if (request == request_ && tile >= first_tile_ && tile < first_tile_ + kTiles) return;
    request_ = request;
    first_tile_ = tile;
    const int lane = lane_id(),
              octet = (tile + lane / kOctets) * (kKeys / kOctet) + first_octet + lane % kOctets;
    mine_ = find_octet(p, p.block_tables + request * p.block_tables_stride, octet, begin, end);
  }
  // Octet i of the warp's in `tile`; i may differ between lanes.  All lanes must call.
  SIMT_DEV Octet get(int tile, int i) const {
    const int source = (tile - first_tile_) * kOctets + i;
    return {__shfl_sync(~0u, mine_.block, source), __shfl_sync(~0u, mine_.slot, source)};
  }
  // Bit i: octet i of the warp's in `tile` has keys.  All lanes must call.
  SIMT_DEV uint32_t present(int tile) const {
    const uint32_t all = __ballot_sync(~0u, mine_.block >= 0);
    return all >> (tile - first_tile_) * kOctets & ((1u << kOctets) - 1);
  }

 private:
  int request_ = -1, first_tile_ = 0;
  Octet mine_{-1, 0};
};

// Copies keys [first_key, first_key + kRows) into `tile`, asynchronously (the caller commits).  Zeros take
// the place of keys outside [begin, end), of absent octets and of columns from head_dim on: whatever is in
// unused slots is not read.  octet(i) gives the place of rows 8 i to 8 i + 7; whole warps call it together.
// kCopy: bytes of one copy, 16, or 8 where the cache is aligned to no more.
template <class Cache, int D, int kRows, int kThreads, int kCopy, class Find>
SIMT_DEV void copy_rows(unsigned char* tile, const KvSource& source, int thread, int first_key, int begin,
                        int end, const Find& octet) {
  constexpr int kChunks = D * static_cast<int>(sizeof(Cache)) / kCopy;
  // A power of two of threads side by side in a row, as many as divide it: a thread keeps its columns.
  constexpr int kPowerOfTwo = kChunks & -kChunks;
  constexpr int kSide = kPowerOfTwo > 32                 ? 32
                        : kPowerOfTwo * kRows < kThreads ? kThreads / kRows
                                                         : kPowerOfTwo;
  constexpr int kRowsAtOnce = kThreads / kSide;
  static_assert(kRows % kRowsAtOnce == 0 && (kSide & (kSide - 1)) == 0, "rows must divide evenly");
  const int column = thread % kSide;
#pragma unroll
  for (int r = 0; r < kRows; r += kRowsAtOnce) {
    const int row = r + thread / kSide, key = first_key + row;
    const Octet place = octet(kRowsAtOnce <= kOctet ? r / kOctet : row / kOctet);
    const bool wanted = place.block >= 0 && key >= begin && key < end;
    const unsigned char* from = source.base;
    if (wanted) from += place.block * source.stride_block + (place.slot + row % kOctet) * source.stride_slot;
    const int row_bytes = wanted ? source.row_bytes : 0;
    unsigned char* to = tile + row * kRowBytes<Cache, D>;
#pragma unroll
    for (int c = 0; c < kChunks; c += kSide) {
      const int at = (c + column) * kCopy;
      if (kChunks % kSide != 0 && at >= kChunks * kCopy) continue;
      const int left = row_bytes - at;
      cp_async<kCopy>(to + at, left > 0 ? from + at : source.base,
                      left >= kCopy ? kCopy
                      : left > 0    ? left
                                    : 0);
    }
  }
}

// The same, with the width of the copies taken from the parameters.
template <class Cache, int D, int kRows, int kThreads, class Find>
SIMT_DEV void copy_rows(const PagedAttentionParams& p, unsigned char* tile, const KvSource& source,
                        int thread, int first_key, int begin, int end, const Find& octet) {
  if (sizeof(Cache) > 1 || p.copy_bytes == 16)
    copy_rows<Cache, D, kRows, kThreads, 16>(tile, source, thread, first_key, begin, end, octet);
  else
    copy_rows<Cache, D, kRows, kThreads, 8>(tile, source, thread, first_key, begin, end, octet);
}

}  // namespace inferx::cuda
