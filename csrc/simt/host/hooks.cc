#include "simt/host/hooks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simt/host/async.h"
#include "simt/host/bank_conflicts.h"
#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/global_memory.h"
#include "simt/host/scheduler.h"
#include "simt/host/time_limit.h"
#include "simt/vector_access.h"

namespace simt::host {

bool checked_build = false;

namespace {

void access(const void* p, size_t bytes, unsigned flags, size_t align, const Where& at, const void* pc) {
  Thread* const thread = current;
  if (thread == nullptr) return;  // host code of the same file
  Block& block = *thread->block;
  if (++block.count[k_accesses] > block.accesses_end)
    fail(at, "endless loop: %llu accesses without a barrier or spin_yield",
         static_cast<unsigned long long>(kMaxAccessesPerVisit));
  if ((block.count[k_accesses] & 0xFFFF) == 0 && out_of_time())
    fail(at, "the launch takes more than time_limit = %d s; ended at this access", options.time_limit);
  if (reinterpret_cast<uintptr_t>(p) % align != 0)
    fail(at, "misaligned %zu-byte %s at %p", bytes, (flags & kWrite) != 0 ? "write" : "read", p);
  if (static_cast<size_t>(static_cast<const char*>(p) - thread->stack) < kStackBytes) {
    check_local_access(*thread, p, bytes, at);
    return;
  }
  if (block.shared.contains(p)) {
    block.shared.access(block, p, bytes, flags, at);
    if (options.bank_conflicts) note_shared_access(*thread, block.shared.offset(p), bytes, pc);
  } else {
    access_global(p, bytes, flags, at);
  }
  if (options.preempt != 0 && random(block) % static_cast<uint64_t>(options.preempt) == 0) yield();
}

void access(const void* p, size_t bytes, unsigned flags, size_t align, const void* pc) {
  access(p, bytes, flags, align, Where::at_pc(pc), pc);
}

// -fsanitize=undefined's data start with the place in the source.
[[gnu::always_inline]] inline void undefined(const void* data, const char* what) {
  if (current == nullptr) return;
  struct Location {
    const char* file;
    uint32_t line, column;
  };
  const auto* location = static_cast<const Location*>(data);
  fail(Site{location->file, static_cast<int>(location->line)}, "%s", what);
}

}  // namespace

void load_vector(void* to, const void* from, size_t bytes, Site at) {
  access(from, bytes, kRead, bytes, at, __builtin_return_address(0));
  memcpy(to, from, bytes);
}

void store_vector(void* to, const void* from, size_t bytes, Site at) {
  access(to, bytes, kWrite, bytes, at, __builtin_return_address(0));
  memcpy(to, from, bytes);
}

}  // namespace simt::host

// ---- the names that GCC calls; hidden, so that no other module of the process meets them ----
#define SIMT_HOOK __attribute__((visibility("hidden"))) void

extern "C" {

SIMT_HOOK __tsan_init() { simt::host::checked_build = true; }  // from a constructor of each object file
SIMT_HOOK __tsan_func_entry(void*) {}
SIMT_HOOK __tsan_func_exit() {}

#define SIMT_CALLER __builtin_return_address(0)
// A struct of two doubles is one access of 16 bytes to GCC, aligned to 8.
#define SIMT_ALIGN(n) ((n) < 8 ? (n) : 8)
#define SIMT_ACCESSES(n)                                                      \
  SIMT_HOOK __tsan_read##n(void* p) {                                         \
    simt::host::access(p, n, simt::host::kRead, SIMT_ALIGN(n), SIMT_CALLER);  \
  }                                                                           \
  SIMT_HOOK __tsan_write##n(void* p) {                                        \
    simt::host::access(p, n, simt::host::kWrite, SIMT_ALIGN(n), SIMT_CALLER); \
  }                                                                           \
  SIMT_HOOK __tsan_unaligned_read##n(void* p) {                               \
    simt::host::access(p, n, simt::host::kRead, 1, SIMT_CALLER);              \
  }                                                                           \
  SIMT_HOOK __tsan_unaligned_write##n(void* p) {                              \
    simt::host::access(p, n, simt::host::kWrite, 1, SIMT_CALLER);             \
  }
SIMT_ACCESSES(1)
SIMT_ACCESSES(2)
SIMT_ACCESSES(4)
SIMT_ACCESSES(8)
SIMT_ACCESSES(16)

SIMT_HOOK __tsan_read_range(void* p, size_t bytes) {
  simt::host::access(p, bytes, simt::host::kRead, 1, SIMT_CALLER);
}
SIMT_HOOK __tsan_write_range(void* p, size_t bytes) {
  simt::host::access(p, bytes, simt::host::kWrite, 1, SIMT_CALLER);
}
SIMT_HOOK __tsan_vptr_update(void**, void*) {}
SIMT_HOOK __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_HOOK __tsan_atomic_signal_fence(int) {}

SIMT_HOOK __ubsan_handle_type_mismatch_v1(void* data, void*) {
  simt::host::undefined(data, "misaligned access");
}
SIMT_HOOK __ubsan_handle_out_of_bounds(void* data, void*) {
  simt::host::undefined(data, "array index out of bounds");
}
SIMT_HOOK __ubsan_handle_shift_out_of_bounds(void* data, void*, void*) {
  simt::host::undefined(data, "shift amount out of range");
}
SIMT_HOOK __ubsan_handle_divrem_overflow(void* data, void*, void*) {
  simt::host::undefined(data, "division by zero");
}

}  // extern "C"
