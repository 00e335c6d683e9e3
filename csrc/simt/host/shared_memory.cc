#include "simt/host/shared_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "simt/host/error.h"
#include "simt/host/memory.h"
#include "simt/host/scheduler.h"
#include "simt/launch.h"
#include "simt/shared.h"

namespace simt::host {
namespace {

// States of a byte.
constexpr uint8_t kAllocated = 1, kInitialised = 2, kCopyUnderWay = 4, kByAtomic = 8, kIsMbarrier = 16;
constexpr size_t kStaticLimit = 48 << 10;

const char* verb(unsigned flags) { return (flags & kWrite) != 0 ? "write" : "read"; }

std::string unit_name(const Block& block, int unit) {
  if (block.clocks.is_thread(unit)) return "thread " + std::to_string(unit);
  return async_unit_name(block, unit - block.clocks.threads());
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (arena_ != nullptr) unmap_guarded(arena_, kArena, kGuard);
  if (shadow_ != nullptr) unmap(shadow_, kArena * sizeof(Cell));
}

void SharedMemory::reset(bool checked) {
  if (arena_ == nullptr) arena_ = map_guarded(kArena, kGuard);
  if (checked && shadow_ == nullptr) shadow_ = static_cast<Cell*>(map_lazily(kArena * sizeof(Cell)));
  used_ = 0;
  variables_.clear();
}

void* SharedMemory::variable(Block& block, const void* key, size_t bytes, size_t align, const char* name,
                             Site at) {
  for (const Variable& v : variables_) {
    if (v.key != key) continue;
    if (v.offset % align != 0)
      fail(at, "dynamic shared memory is declared with different alignments (%zu here)", align);
    return arena_ + v.offset;
  }
  size_t offset = (used_ + align - 1) / align * align;
  if (offset % (2 * align) == 0) offset += align;  // no better aligned than asked for
  size_t total = bytes, fixed = key != nullptr ? bytes : 0;
  for (const Variable& v : variables_) {
    total += v.bytes;
    if (v.key != nullptr) fixed += v.bytes;
  }
  if (total > options.shared_limit || fixed > kStaticLimit)
    fail(at, "shared memory with '%s': %zu bytes in all, %zu static (limits: %zu and %zu)", name, total,
         fixed, options.shared_limit, kStaticLimit);
  // The rest that the block may still ask for must stay within reach.
  const size_t rest = options.shared_limit - total + (4 << 10);
  const bool wide = block.checked() && offset + bytes + kWideGap + rest <= kAddressable;
  const size_t gap = wide ? kWideGap : kGap;
  const size_t end = offset + bytes + gap;
  if (end > kArena) fail(at, "shared memory: %zu bytes for '%s' do not fit", bytes, name);
  memset(arena_ + used_, 0xFF, end - used_);
  if (block.checked()) {
    memset(static_cast<void*>(shadow_ + used_), 0, (end - used_) * sizeof(Cell));
    for (size_t i = 0; i < bytes; ++i) shadow_[offset + i].state = kAllocated;
  }
  used_ = end;
  variables_.push_back({key, name, offset, bytes, gap});
  return arena_ + offset;
}

std::string SharedMemory::describe(size_t offset) const {
  std::string text;
  for (const Variable& v : variables_) {
    if (offset + kGap < v.offset || offset >= v.offset + v.bytes + v.gap) continue;
    char one[300];
    snprintf(one, sizeof one, "%s'%s' [%zu bytes] at byte %ld", text.empty() ? "" : " / ", v.name, v.bytes,
             static_cast<long>(offset) - static_cast<long>(v.offset));
    text += one;
  }
  return text.empty() ? "no variable" : text;
}

void SharedMemory::access(Block& block, const void* p, size_t bytes, unsigned flags, const Where& at) {
  const size_t start = offset(p);
  if (block.checked()) {
    const int unit = current->number;
    return check(block, unit, block.clocks.now(unit), start, bytes, flags, at);
  }
  for (const Variable& v : variables_)
    if (start >= v.offset && start + bytes <= v.offset + v.bytes) return;
  fail(at, "%s of %zu bytes out of bounds of shared memory: %s", verb(flags), bytes, describe(start).c_str());
}

void SharedMemory::access_async(Block& block, int unit, uint32_t clock, const void* p, size_t bytes,
                                unsigned flags, const Where& at) {
  if (!contains(p)) fail(at, "not an address in shared memory: %p", p);
  if (block.checked()) return check(block, unit, clock, offset(p), bytes, flags, at);
  access(block, p, bytes, flags, at);
}

void SharedMemory::check(Block& block, int unit, uint32_t clock, size_t start, size_t bytes, unsigned flags,
                         const Where& at) {
  const Clocks& clocks = block.clocks;
  const int issuer = current->number;  // whose knowledge counts
  const bool write = (flags & kWrite) != 0, atomic = (flags & kAtomic) != 0;
  if (start + bytes > kArena) fail(at, "%s of %zu bytes past the end of shared memory", verb(flags), bytes);
  Cell before{}, after{};
  for (size_t i = start; i < start + bytes; ++i) {
    Cell& cell = shadow_[i];
    // Bytes of one element have mostly the same past.
    if (i > start && memcmp(&cell, &before, sizeof cell) == 0) {
      cell = after;
      continue;
    }
    before = cell;
    const bool initialised = (cell.state & kInitialised) != 0;
    const auto unknown = [&](int other, uint32_t time) {
      return time != 0 && other != unit && other != issuer && time > clocks.known(issuer, other);
    };
    if ((cell.state & kAllocated) == 0)
      fail(at, "%s of %zu bytes out of bounds of shared memory: %s", verb(flags), bytes, describe(i).c_str());
    if ((cell.state & kCopyUnderWay) != 0)
      fail(at, "%s of shared memory that an asynchronous copy is still filling (missing wait): %s",
           verb(flags), describe(i).c_str());
    if ((!write || atomic) && !initialised && options.uninitialised)
      fail(at, "%s of uninitialised shared memory: %s", atomic ? "atomic" : "read", describe(i).c_str());
    if (initialised && unknown(cell.writer, cell.write_clock) && !(atomic && (cell.state & kByAtomic) != 0))
      fail(at, "data race on shared memory: %s by thread %d after a write by %s with no barrier between: %s",
           verb(flags), issuer, unit_name(block, cell.writer).c_str(), describe(i).c_str());
    if (!atomic && initialised && unknown(cell.atomic_writer, cell.atomic_clock))
      fail(at,
           "data race on shared memory: %s by thread %d after an atomic by %s with no barrier between: %s",
           verb(flags), issuer, unit_name(block, cell.atomic_writer).c_str(), describe(i).c_str());
    if (write && (cell.state & kIsMbarrier) != 0 && (flags & kMbarrier) == 0)
      fail(at, "write to an mbarrier that is in use: %s", describe(i).c_str());
    if ((flags & kAsyncProxy) != 0 && initialised && clocks.is_thread(cell.writer) &&
        cell.write_clock > block.threads[cell.writer].proxy_clock)
      fail(at,
           "asynchronous read of shared memory that thread %d wrote with no fence_proxy_async after it: %s",
           cell.writer, describe(i).c_str());
    if (write) {
      for (int r = 0; r < 2; ++r) {
        if (unknown(cell.reader[r], cell.read_clock[r]))
          fail(
              at,
              "data race on shared memory: write by thread %d after a read by %s with no barrier between: %s",
              issuer, unit_name(block, cell.reader[r]).c_str(), describe(i).c_str());
      }
      if (!atomic) {
        cell.atomic_clock = 0;
      } else if (initialised && unknown(cell.writer, cell.write_clock)) {
        cell.atomic_writer = cell.writer;
        cell.atomic_clock = cell.write_clock;
      }
      cell.writer = static_cast<uint16_t>(unit);
      cell.write_clock = clock;
      cell.state = static_cast<uint8_t>(kAllocated | kInitialised | (atomic ? kByAtomic : 0) |
                                        ((flags & kInFlight) != 0 ? kCopyUnderWay : 0));
    } else {
      // Room for two readers: an own or ordered entry goes first, else one of the two by chance.
      int r = 0;
      if (unknown(cell.reader[0], cell.read_clock[0])) {
        r = 1;
        if (unknown(cell.reader[1], cell.read_clock[1])) r = static_cast<int>(random(block) & 1);
      }
      cell.reader[r] = static_cast<uint16_t>(unit);
      cell.read_clock[r] = clock;
    }
    after = cell;
  }
}

void SharedMemory::mark_mbarrier(const Block& block, size_t offset) {
  if (!block.checked()) return;
  for (size_t i = offset; i < offset + 8; ++i) shadow_[i].state |= kIsMbarrier;
}

void SharedMemory::land(const Block& block, const void* p, size_t bytes, int unit, uint32_t clock) {
  if (!block.checked()) return;
  Cell* cell = shadow_ + offset(p);
  for (size_t i = 0; i < bytes; ++i, ++cell) {
    cell->state = static_cast<uint8_t>(cell->state & ~kCopyUnderWay);
    cell->writer = static_cast<uint16_t>(unit);
    cell->write_clock = clock;
  }
}

void SharedMemory::check_gaps(const Block& block) const {
  for (const Variable& v : variables_) {
    for (size_t i = v.offset + v.bytes; i < v.offset + v.bytes + v.gap; ++i) {
      if (arena_[i] == '\xFF') continue;
      return report(block, {}, "write out of bounds of shared memory: " + describe(i));
    }
  }
}

void access_shared(const void* p, size_t bytes, unsigned flags, const Where& at) {
  Block& block = *current->block;
  if (!block.shared.contains(p)) fail(at, "not an address in shared memory: %p", p);
  block.shared.access(block, p, bytes, flags, at);
}

uint32_t shared_offset(const void* p, const Where& at) {
  SharedMemory& shared = current->block->shared;
  if (!shared.contains(p)) fail(at, "not an address in shared memory: %p", p);
  return static_cast<uint32_t>(shared.offset(p));
}

// ---- what kernels call ----

uint32_t smem_u32(const void* p, Site at) { return shared_offset(p, at); }

void* static_shared(const void* key, size_t bytes, size_t align, const char* name, Site at) {
  Block& block = *current->block;
  return block.shared.variable(block, key, bytes, align, name, at);
}

void* dynamic_shared(size_t align, Site at) {
  Block& block = *current->block;
  align = std::max<size_t>(align, 16);
  return block.shared.variable(block, nullptr, block.launch->shared_bytes, align, "dynamic", at);
}

}  // namespace simt::host
