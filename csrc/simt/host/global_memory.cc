#include "simt/host/global_memory.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>

#include "simt/host/error.h"
#include "simt/host/global_races.h"
#include "simt/host/scheduler.h"
#include "simt/launch.h"

namespace simt::host {
namespace {

std::vector<Fence> fences;
uint64_t fences_version = 0;  // which a FenceCache is of

bool find_in_fences(FenceCache& cache, uintptr_t p, size_t bytes, bool write) {
  if (cache.version != fences_version) {
    cache = FenceCache{};
    cache.version = fences_version;
  }
  for (const FenceCache::Entry& e : cache.entries)
    if (p >= e.begin && p + bytes <= e.end && (e.writable || !write)) return true;
  for (const Fence& fence : fences) {
    FenceCache::Entry found;
    if ((write && !fence.writable()) || !fence.find(p, bytes, &found.begin, &found.end)) continue;
    found.writable = fence.writable();
    cache.entries[cache.next++ % FenceCache::kEntries] = found;
    return true;
  }
  return false;
}

// Constants: what the module that holds the kernel has loaded.
bool in_module_of(const void* kernel, uintptr_t p, size_t bytes) {
  struct Query {
    uintptr_t kernel, begin, end;
    bool found;
  } query{reinterpret_cast<uintptr_t>(kernel), p, p + bytes, false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* q = static_cast<Query*>(data);
        bool has_kernel = false, has_bytes = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
          const uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
          const uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
          has_kernel |= q->kernel >= begin && q->kernel < end;
          has_bytes |= q->begin >= begin && q->end <= end;
        }
        q->found = has_kernel && has_bytes;
        return has_kernel ? 1 : 0;
      },
      &query);
  return query.found;
}

[[noreturn]] void fail_out_of_bounds(uintptr_t p, size_t bytes, bool write, const Where& at) {
  const char* verb = write ? "write" : "read";
  uintptr_t begin, end;
  const Fence* nearest = nullptr;
  uintptr_t distance = 64 << 10;  // further away, it is no tensor's neighbour
  for (const Fence& fence : fences) {
    if (write && fence.find(p, bytes, &begin, &end))
      fail(at, "write to %s, which this op only reads", fence.describe().c_str());
    if (fence.empty()) continue;
    const uintptr_t d = p < fence.begin() ? fence.begin() - p : p >= fence.end() ? p - fence.end() + 1 : 0;
    if (d < distance) nearest = &fence, distance = d;
  }
  const Block& block = *current->block;
  for (int t = 0; t < block.num_threads; ++t) {
    if (p - reinterpret_cast<uintptr_t>(block.threads[static_cast<size_t>(t)].stack) < kStackBytes)
      fail(at, "%s of the local memory of thread %d", verb, t);
  }
  if (nearest != nullptr)
    fail(at, "global %s of %zu bytes out of bounds: %s", verb, bytes, nearest->explain(p, bytes).c_str());
  fail(at, "global %s of %zu bytes out of bounds: 0x%zx is in no tensor of this op", verb, bytes,
       static_cast<size_t>(p));
}

}  // namespace

void set_fences(std::vector<Fence> all, bool checked) {
  fences = std::move(all);
  ++fences_version;
  if (checked) prepare_race_checks(fences);
}

void access_global(const void* address, size_t bytes, unsigned flags, const Where& at) {
  const auto p = reinterpret_cast<uintptr_t>(address);
  const bool write = (flags & kWrite) != 0;
  Block& block = *current->block;
  const auto arguments = reinterpret_cast<uintptr_t>(block.launch->arguments);
  if (!write && p >= arguments && p + bytes <= arguments + block.launch->arguments_bytes) return;
  if (!find_in_fences(block.fence_cache, p, bytes, write)) {
    if (!write && in_module_of(block.launch->kernel, p, bytes)) return;
    fail_out_of_bounds(p, bytes, write, at);
  }
  if (block.checked()) check_global_race(p, bytes, flags, at);
}

}  // namespace simt::host
