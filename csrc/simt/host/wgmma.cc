// wgmma: computed at the wait that guarantees it; from the issue until then the accumulators hold NaN, and
// the operands must stay what they are.
#include "simt/wgmma.h"

#include <cstring>
#include <memory>

#include "simt/host/block.h"
#include "simt/host/element.h"
#include "simt/host/error.h"

namespace simt::host {

namespace {

constexpr int kMaxN = 256, kKBytes = 32;  // of K of one product, in every type

// An operand in shared memory, by "Matrix Descriptor Format" and "Canonical Layouts" of the PTX ISA.
struct Operand {
  uint32_t start, leading, stride, row;  // bytes; row: of one swizzle span, 16 without swizzle
  int swizzle, base_offset;              // swizzle: xor of so many address bits
  bool n_major;

  Operand(uint64_t descriptor, bool n_major) : n_major(n_major) {
    const auto field = [&](int low) { return static_cast<uint32_t>(descriptor >> low & 0x3FFF) << 4; };
    start = field(0);
    leading = field(16);
    stride = field(32);
    base_offset = static_cast<int>(descriptor >> 49 & 7);
    const int mode = static_cast<int>(descriptor >> 62);
    swizzle = mode == 0 ? 0 : 4 - mode;
    row = 16u << swizzle;
  }
  // Of the 16 bytes that hold: K-major, row mn at bytes 16 chunk of K; N-major, row k at elements 8 chunk of
  // N.
  uint32_t address(uint32_t index, uint32_t chunk) const {
    uint32_t offset = index % 8 * row;
    if (swizzle == 0) {
      offset += n_major ? chunk * stride + index / 8 * leading : index / 8 * stride + chunk * leading;
    } else if (n_major) {
      const uint32_t span = row / 16;
      offset += chunk % span * 16 + chunk / span * leading + index / 8 * stride;
    } else {
      offset += index / 8 * stride + chunk * 16;
    }
    const uint32_t plain = start + offset;
    return plain ^ ((plain >> 7 & ((1u << swizzle) - 1)) << 4);
  }
};

struct Slot {
  MmaType type;
  int n;
  void* d;
  const uint32_t* a;
  uint64_t da, db;
  bool accumulate, n_major;
};

void check_operand(const char* name, const Operand& operand, Site at) {
  if (operand.base_offset != 0) {
    fail(
        at,
        "wgmma: the descriptor of %s has base offset %d; the executor wants tiles at the swizzle's alignment",
        name, operand.base_offset);
  }
  if (operand.swizzle != 0 && operand.start % (8 * operand.row) >= operand.row) {
    fail(at,
         "wgmma: the tile of %s does not begin at a multiple of %u bytes, as its swizzle wants (start 0x%x)",
         name, 8 * operand.row, operand.start);
  }
}

// Calls body(address of 16 bytes, index, chunk) for what one warp reads of B, or of rows `first_row` .. of A.
template <class Body>
void for_each_chunk_of_b(const Operand& b, int n, const Body& body) {
  const auto rows = static_cast<uint32_t>(b.n_major ? kKBytes / 2 : n);
  const auto chunks = static_cast<uint32_t>(b.n_major ? n / 8 : kKBytes / 16);
  for (uint32_t i = 0; i < rows; ++i) {
    for (uint32_t c = 0; c < chunks; ++c) body(b.address(i, c), i, c);
  }
}
template <class Body>
void for_each_chunk_of_a(const Operand& a, int warp, const Body& body) {
  const auto first = static_cast<uint32_t>(warp % 4 * 16);
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t c = 0; c < kKBytes / 16; ++c) body(a.address(first + i, c), i, c);
  }
}

void check_reads(Block& block, int warp, const Wgmma& w, unsigned flags, const Where& at) {
  const int unit = block.clocks.async_unit(kWgmmaUnit + warp);
  const auto check = [&](uint32_t address, uint32_t, uint32_t) {
    block.shared.access_async(block, unit, w.clock, block.shared.at(address), 16, flags, at);
  };
  if (!w.a_in_registers) for_each_chunk_of_a(Operand(w.da, false), warp, check);
  for_each_chunk_of_b(Operand(w.db, w.n_major), w.n, check);
}

// All warps of the group issue the same products; the first one to come says which.
void check_same_in_warpgroup(Block& block, int warp, const Slot& slot, Site at) {
  std::vector<BlockAsync::Warpgroup::Product>& products = block.async.warpgroups[warp / 4].products;
  const uint32_t number = block.warps[warp].async.issued++;
  if (number == products.size()) {
    products.push_back({slot.type, slot.n, slot.accumulate, slot.n_major, slot.da, slot.db, at});
    return;
  }
  const auto& first = products[number];
  if (first.type != slot.type || first.n != slot.n || first.accumulate != slot.accumulate ||
      first.da != slot.da || first.db != slot.db || first.n_major != slot.n_major) {
    fail(at, "wgmma: warp %d issues another product than the first warp of its warpgroup at %s", warp,
         to_string(first.at).c_str());
  }
}

size_t accumulator_of(WarpAsync& warp, void* const* slots, int bytes, Site at) {
  const auto d = [&](int lane) { return static_cast<char*>(static_cast<const Slot*>(slots[lane])->d); };
  for (size_t i = 0; i < warp.accumulators.size(); ++i) {
    Accumulator& known = warp.accumulators[i];
    if (known.d[0] == d(0) && known.bytes == bytes) return i;
    if (known.in_flight > 0 && d(0) < known.d[0] + known.bytes && known.d[0] < d(0) + bytes) {
      fail(at, "wgmma: the accumulators overlap those of a product in flight of another shape");
    }
  }
  Accumulator& fresh = warp.accumulators.emplace_back();
  for (int lane = 0; lane < 32; ++lane) fresh.d[lane] = d(lane);
  fresh.bytes = bytes;
  return warp.accumulators.size() - 1;
}

// Their values move away and NaN (in integers: the largest) takes their place.
void take_away(Accumulator& accumulator) {
  const auto words = static_cast<size_t>(accumulator.bytes) / 4;
  accumulator.value.resize(32 * words);
  for (size_t lane = 0; lane < 32; ++lane) {
    std::memcpy(&accumulator.value[lane * words], accumulator.d[lane], 4 * words);
    const uint32_t poison = 0x7FFFFFFF;
    for (size_t i = 0; i < words; ++i) std::memcpy(accumulator.d[lane] + 4 * i, &poison, 4);
  }
}

void issue(Block& block, int warp_number, void* const* slots, unsigned mask, Site at) {
  Warp& warp = block.warps[warp_number];
  const Slot& first = *static_cast<const Slot*>(slots[0]);
  if (mask != ~0u) fail(at, "wgmma needs all 32 lanes of the warp, not 0x%08x", mask);
  if (warp_number / 4 * 4 + 3 >= block.num_warps)
    fail(at, "wgmma: warp %d is in no whole warpgroup", warp_number);
  if (!warp.async.fenced) fail(at, "wgmma with no wgmma_fence() since the start or the last wait");

  Wgmma w{};
  for (int lane = 0; lane < 32; ++lane) {
    const Slot& slot = *static_cast<const Slot*>(slots[lane]);
    if (slot.da != first.da || slot.db != first.db || slot.accumulate != first.accumulate) {
      fail(at, "wgmma: descriptors or `accumulate` differ between lanes 0 and %d", lane);
    }
    w.a_source[lane] = slot.a;
    if (slot.a != nullptr) std::memcpy(w.a[lane], slot.a, sizeof w.a[lane]);
  }
  w.type = first.type;
  w.n = first.n;
  w.a_in_registers = first.a != nullptr;
  w.accumulate = first.accumulate;
  w.n_major = first.n_major;
  w.da = first.da;
  w.db = first.db;
  w.group = warp.async.group;
  w.at = at;
  if (!w.a_in_registers) check_operand("A", Operand(w.da, false), at);
  check_operand("B", Operand(w.db, w.n_major), at);
  check_same_in_warpgroup(block, warp_number, first, at);

  w.accumulator = accumulator_of(warp.async, slots, 2 * w.n, at);
  Accumulator& accumulator = warp.async.accumulators[w.accumulator];
  if (accumulator.touched != 0) {
    fail(at, "wgmma: lane %d has used these accumulators since the last wgmma_fence()",
         __builtin_ctz(accumulator.touched));
  }
  if (accumulator.in_flight++ == 0) take_away(accumulator);
  w.clock = block.checked() ? block.clocks.tick(block.clocks.async_unit(kWgmmaUnit + warp_number)) : 0;
  check_reads(block, warp_number, w, kRead | kAsyncProxy, at);
  warp.async.products.push_back(w);
}

template <MmaType Type>
void multiply(Block& block, int warp_number, const Wgmma& w, uint32_t* values) {
  using E = Element<Type>;
  using T = typename E::Value;
  constexpr int kE = E::kPerRegister, kK = kKBytes / E::kBytes, kChunk = 16 / E::kBytes;
  struct Scratch {  // too large for a CUDA thread's stack, and for thread_local itself (see block.h)
    alignas(64) T a[16][kK], b[kK][kMaxN], d[16][kMaxN];
  };
  static thread_local std::unique_ptr<Scratch> scratch;
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  auto& [a, b, d] = *scratch;
  uint32_t chunk[4];
  if (w.a_in_registers) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int r = 0; r < 4; ++r) {
        for (int e = 0; e < kE; ++e) a[g + r % 2 * 8][r / 2 * kK / 2 + t * kE + e] = E::get(w.a[lane][r], e);
      }
    }
  } else {
    for_each_chunk_of_a(Operand(w.da, false), warp_number, [&](uint32_t address, uint32_t i, uint32_t c) {
      std::memcpy(chunk, block.shared.at(address), 16);
      for (int e = 0; e < kChunk; ++e) a[i][static_cast<int>(c) * kChunk + e] = E::get(chunk[e / kE], e % kE);
    });
  }
  for_each_chunk_of_b(Operand(w.db, w.n_major), w.n, [&](uint32_t address, uint32_t i, uint32_t c) {
    std::memcpy(chunk, block.shared.at(address), 16);
    const int first = static_cast<int>(c) * kChunk;
    for (int e = 0; e < kChunk; ++e) {
      (w.n_major ? b[i][first + e] : b[first + e][i]) = E::get(chunk[e / kE], e % kE);
    }
  });
  // The accumulators' layout: see wgmma.h.
  const int per_lane = w.n / 2;
  const auto value = [&](int lane, int j) { return reinterpret_cast<char*>(values + lane * per_lane + j); };
  const auto row = [](int lane, int j) { return lane / 4 + j % 4 / 2 * 8; };
  const auto column = [](int lane, int j) { return j / 4 * 8 + lane % 4 * 2 + j % 2; };
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < per_lane; ++j) {
      T& sum = d[row(lane, j)][column(lane, j)];
      sum = T{};
      if (w.accumulate) std::memcpy(&sum, value(lane, j), 4);
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kK; ++k) {
      const T factor = a[i][k];
      for (int j = 0; j < w.n; ++j) d[i][j] = multiply_add(d[i][j], factor, b[k][j]);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < per_lane; ++j) std::memcpy(value(lane, j), &d[row(lane, j)][column(lane, j)], 4);
  }
}

void complete(Block& block, int warp_number, const Wgmma& w) {
  check_reads(block, warp_number, w, kRead, w.at);  // once more: the operands are what they were
  Accumulator& accumulator = block.warps[warp_number].async.accumulators[w.accumulator];
  uint32_t* values = accumulator.value.data();
  switch (w.type) {
    case MmaType::bf16:
      multiply<MmaType::bf16>(block, warp_number, w, values);
      break;
    case MmaType::f16:
      multiply<MmaType::f16>(block, warp_number, w, values);
      break;
    case MmaType::e4m3:
      multiply<MmaType::e4m3>(block, warp_number, w, values);
      break;
    default:
      multiply<MmaType::s8>(block, warp_number, w, values);
      break;
  }
  ++block.count[k_wgmma];
  if (--accumulator.in_flight > 0) return;
  for (int lane = 0; lane < 32; ++lane) {
    std::memcpy(accumulator.d[lane], values + lane * (accumulator.bytes / 4),
                static_cast<size_t>(accumulator.bytes));
  }
}

void wait(Block& block, int warp_number, void* const* slots, unsigned, Site) {
  WarpAsync& warp = block.warps[warp_number].async;
  const auto keep = static_cast<uint32_t>(*static_cast<const int*>(slots[0]));
  Clocks::Snapshot learnt;
  size_t done = 0;
  for (; done < warp.products.size(); ++done) {
    const Wgmma& w = warp.products[done];
    if (warp.group - w.group <= keep) break;
    complete(block, warp_number, w);
    add_unit(block, learnt, block.clocks.async_unit(kWgmmaUnit + warp_number), w.clock);
  }
  warp.products.erase(warp.products.begin(), warp.products.begin() + static_cast<std::ptrdiff_t>(done));
  warp.fenced = false;
  // All lanes know now that the operands have been read, and may tell others so.
  for (int lane = 0; lane < 32 && !learnt.empty(); ++lane)
    block.clocks.acquire(warp_number * 32 + lane, learnt);
}

bool overlaps(const void* p, size_t bytes, const void* q, size_t length) {
  const auto a = reinterpret_cast<uintptr_t>(p), b = reinterpret_cast<uintptr_t>(q);
  return a < b + length && b < a + bytes;
}

}  // namespace

void check_descriptor(uint32_t start, int lbo, int sbo, int swizzle, Site at) {
  if (start % 16 != 0) fail(at, "smem_desc: the operand's address is not 16-byte aligned (0x%x)", start);
  for (const int stride : {lbo, sbo}) {
    if (stride < 0 || stride % 16 != 0 || stride >= 1 << 18) {
      fail(at, "smem_desc: a stride of %d bytes is not a multiple of 16 below 2^18", stride);
    }
  }
  if (swizzle < 0 || swizzle > 3) fail(at, "smem_desc: there is no swizzle %d", swizzle);
}

void wgmma_fence(Site at) {
  warp_op(
      ~0u, "wgmma_fence", nullptr,
      [](Block& block, int warp, void* const*, unsigned, Site) {
        WarpAsync& async = block.warps[warp].async;
        async.fenced = true;
        for (Accumulator& accumulator : async.accumulators) accumulator.touched = 0;
      },
      at);
}

void wgmma_commit(Site at) {
  warp_op(
      ~0u, "wgmma_commit", nullptr,
      [](Block& block, int warp, void* const*, unsigned, Site) { ++block.warps[warp].async.group; }, at);
}

void wgmma_wait(int groups_left, Site at) { warp_op(~0u, "wgmma_wait", &groups_left, wait, at); }

void wgmma(MmaType type, int n, void* d, const uint32_t* a, uint64_t da, uint64_t db, bool accumulate,
           bool n_major, Site at) {
  Slot slot{type, n, d, a, da, db, accumulate, n_major};
  warp_op(~0u, "wgmma", &slot, issue, at);
}

void check_local_access(Thread& thread, const void* p, size_t bytes, const Where& at) {
  WarpAsync& warp = thread.block->warps[thread.warp].async;
  if (warp.accumulators.empty()) return;
  const auto lane = static_cast<size_t>(thread.lane);
  for (Accumulator& accumulator : warp.accumulators) {
    if (!overlaps(p, bytes, accumulator.d[lane], static_cast<size_t>(accumulator.bytes))) continue;
    if (accumulator.in_flight > 0) fail(at, "access to wgmma accumulators before the wgmma_wait() for them");
    accumulator.touched |= 1u << lane;
  }
  for (const Wgmma& w : warp.products) {
    if (w.a_in_registers && overlaps(p, bytes, w.a_source[lane], sizeof w.a[lane])) {
      fail(at, "access to the registers of A of a wgmma before the wgmma_wait() for it");
    }
  }
}

void check_wgmma_done(Thread& thread) {
  const WarpAsync& warp = thread.block->warps[thread.warp].async;
  if (warp.products.empty()) return;
  fail(warp.products[0].at, "thread %d left the kernel before the wgmma_wait() for this wgmma",
       thread.number);
}

void check_warpgroups(const Block& block) {
  for (int warp = 0; warp < block.num_warps; ++warp) {
    const auto& products = block.async.warpgroups[warp / 4].products;
    const uint32_t issued = block.warps[warp].async.issued;
    if (issued == products.size()) continue;
    return report(block, products[issued].at,
                  "wgmma: warp " + std::to_string(warp) + " issued " + std::to_string(issued) +
                      " products, others of its warpgroup " + std::to_string(products.size()));
  }
}

}  // namespace simt::host
