// cp.async: the bytes land at the wait; until then the target is poisoned and reading it an error.
#include "simt/cp_async.h"

#include <cstring>

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/global_memory.h"

namespace simt::host {

namespace {

void land(Block& block, const CpAsync& copy, int unit, uint32_t clock) {
  std::memcpy(copy.dst, copy.src, static_cast<size_t>(copy.src_bytes));
  std::memset(static_cast<char*>(copy.dst) + copy.src_bytes, 0,
              static_cast<size_t>(copy.bytes - copy.src_bytes));
  block.shared.land(block, copy.dst, static_cast<size_t>(copy.bytes), unit, clock);
}

}  // namespace

void cp_async(void* dst, const void* src, int bytes, int src_bytes, Site at) {
  const auto size = static_cast<size_t>(bytes);
  if (shared_offset(dst, at) % size != 0)
    fail(at, "cp.async: the shared address is not %d-byte aligned", bytes);
  if (src_bytes < 0 || src_bytes > bytes) fail(at, "cp.async: %d source bytes of %d", src_bytes, bytes);
  if (src_bytes > 0) {
    if (reinterpret_cast<uintptr_t>(src) % size != 0) {
      fail(at, "cp.async: the global address %p is not %d-byte aligned", src, bytes);
    }
    access_global(src, static_cast<size_t>(src_bytes), kRead, at);
  }
  access_shared(dst, size, kWrite | kInFlight, at);
  std::memset(dst, 0xFF, size);
  current->async.copies.push_back({dst, src, bytes, src_bytes, current->async.copy_group});
}

void cp_async_commit() { ++current->async.copy_group; }

void cp_async_wait(int groups_left, Site) {
  Thread& thread = *current;
  Block& block = *thread.block;
  std::vector<CpAsync>& copies = thread.async.copies;
  size_t done = 0;
  Clocks::Snapshot learnt;
  for (; done < copies.size(); ++done) {
    const CpAsync& copy = copies[done];
    if (thread.async.copy_group - copy.group <= static_cast<uint32_t>(groups_left)) break;
    if (copy.landed_by < 0) {
      land(block, copy, thread.number, block.checked() ? block.clocks.now(thread.number) : 0);
    } else {
      add_unit(block, learnt, copy.landed_by, copy.landed_at);
    }
  }
  block.clocks.acquire(thread.number, learnt);
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
  thread.async.copies_gone += static_cast<uint32_t>(done);
}

void land_cp_async(Block& block, Thread& thread, uint32_t end, int unit, uint32_t clock) {
  uint32_t number = thread.async.copies_gone;
  for (CpAsync& copy : thread.async.copies) {
    if (number++ == end) break;
    if (copy.landed_by >= 0) continue;
    land(block, copy, unit, clock);
    copy.landed_by = unit;
    copy.landed_at = clock;
  }
}

}  // namespace simt::host
