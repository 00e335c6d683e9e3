// Bulk copies and tensor tiles.  A load lands when no thread can go on without it; a store reads its source
// at the last moment, when bulk_wait_read() comes for it, and writes its target later still.
#include "simt/bulk_copy.h"

#include <cstring>

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/global_memory.h"
#include "simt/tma.h"

namespace simt::host {

namespace {

void check_alignment(const char* op, const void* shared, const void* global, uint32_t bytes, Site at) {
  if (shared_offset(shared, at) % 16 != 0) fail(at, "%s: the shared address is not 16-byte aligned", op);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    fail(at, "%s: the global address %p is not 16-byte aligned", op, global);
  }
  if (bytes == 0 || bytes % 16 != 0)
    fail(at, "%s: %u bytes, which is not a positive multiple of 16", op, bytes);
}

int store_unit(const Thread& thread) { return thread.block->clocks.async_unit(kBulkStoreUnit + thread.warp); }

void check_source(Thread& thread, const BulkStore& store, unsigned flags) {
  Block& block = *thread.block;
  block.shared.access_async(block, store_unit(thread), store.clock, store.box.shared, store.box.bytes, flags,
                            store.at);
}

void read_source(Thread& thread, BulkStore& store) {
  check_source(thread, store, kRead);  // once more: nobody has written there since
  store.data.resize(store.box.bytes);
  read_box(store.box, store.data.data());
  store.read = true;
}

}  // namespace

void issue_load(const Box& box, uint64_t* p, Site at) {
  Mbarrier& bar = mbar_at(p, at);
  Block& block = *current->block;
  if (!bar.fenced) {
    fail(at, "copy on an mbarrier that thread %d initialised with no mbar_fence_init() after it",
         bar.initialiser);
  }
  Load load;
  load.mbarrier = static_cast<int>(&bar - block.async.mbarriers.data());
  load.box = box;
  load.at = at;
  const int unit = block.clocks.async_unit(kMbarrierUnit + load.mbarrier);
  if (block.checked()) load.clock = block.clocks.tick(unit);
  block.shared.access_async(block, unit, load.clock, box.shared, box.bytes, kWrite | kInFlight, at);
  check_box_global(box, kRead, at);
  std::memset(box.shared, 0xFF, box.bytes);
  block.async.loads.push_back(load);
  ++block.count[k_bulk_copies];
}

void issue_store(const Box& box, Site at) {
  Thread& thread = *current;
  Block& block = *thread.block;
  BulkStore store;
  store.box = box;
  store.group = thread.async.store_group;
  store.at = at;
  store.clock = block.checked() ? block.clocks.tick(store_unit(thread)) : 0;
  check_source(thread, store, kRead | kAsyncProxy);
  check_box_global(box, kWrite, at);
  thread.async.stores.push_back(std::move(store));
  ++block.count[k_bulk_copies];
}

void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, Site at) {
  check_alignment("bulk_load", dst, src, bytes, at);
  issue_load(plain_box(dst, src, bytes), bar, at);
}

void bulk_store(void* dst, const void* src, uint32_t bytes, Site at) {
  check_alignment("bulk_store", src, dst, bytes, at);
  issue_store(plain_box(const_cast<void*>(src), dst, bytes), at);
}

void tma_load(void* dst, const CUtensorMap* map, uint64_t* bar, int rank, const int* coords, Site at) {
  issue_load(tensor_box(dst, map, rank, coords, "tma_load", at), bar, at);
}

void tma_store(const CUtensorMap* map, const void* src, int rank, const int* coords, Site at) {
  issue_store(tensor_box(const_cast<void*>(src), map, rank, coords, "tma_store", at), at);
}

void bulk_commit() { ++current->async.store_group; }

void bulk_wait(int groups_left, bool only_reads, Site) {
  Thread& thread = *current;
  Block& block = *thread.block;
  std::vector<BulkStore>& stores = thread.async.stores;
  size_t done = 0;
  Clocks::Snapshot learnt;
  for (; done < stores.size(); ++done) {
    BulkStore& store = stores[done];
    if (thread.async.store_group - store.group <= static_cast<uint32_t>(groups_left)) break;
    if (!store.read) read_source(thread, store);
    add_unit(block, learnt, store_unit(thread), store.clock);
    if (!only_reads) write_box(store.box, store.data.data());
  }
  block.clocks.acquire(thread.number, learnt);
  if (!only_reads) stores.erase(stores.begin(), stores.begin() + static_cast<std::ptrdiff_t>(done));
}

void check_stores_read(Thread& thread) {
  for (const BulkStore& store : thread.async.stores) {
    if (!store.read)
      fail(store.at, "thread %d left the kernel before bulk_wait_read() for this store", thread.number);
    write_box(store.box, store.data.data());
  }
  thread.async.stores.clear();
}

}  // namespace simt::host
