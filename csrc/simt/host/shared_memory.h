// A block's shared memory: allocation, and in the checked build a shadow of each byte.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simt/host/site.h"

namespace simt::host {

struct Block;

enum AccessFlags : unsigned {
  kRead = 0,
  kWrite = 1,
  kAtomic = 2,      // with kWrite: a read-modify-write; does not race with another one
  kInFlight = 4,    // with kWrite: by an asynchronous copy that is under way until land()
  kMbarrier = 16,   // with kWrite: by what makes an mbarrier, or ends it
  kAsyncProxy = 8,  // with kRead: by wgmma or a bulk store; the writers must have called fence_proxy_async
};

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void reset(bool checked);  // for a new block: nothing is allocated
  // The variable of this key; allocated and filled with 0xFF at the first call.  Its address has exactly the
  // alignment asked for and no more, so that code which relies on more fails here too.
  void* variable(Block& block, const void* key, size_t bytes, size_t align, const char* name, Site at);

  bool contains(const void* p) const { return offset(p) < kArena; }
  size_t offset(const void* p) const { return static_cast<size_t>(static_cast<const char*>(p) - arena_); }
  char* at(size_t offset) { return arena_ + offset; }
  std::string describe(size_t offset) const;  // "'partial' [16 bytes] at byte 16"

  // The checks of one access by the current thread.  The fast build checks only that it lies in a variable.
  void access(Block& block, const void* p, size_t bytes, unsigned flags, const Where& at);
  // The same by an asynchronous unit at its time `clock` (Clocks::tick), which the current thread has
  // started: a write races with what that thread does not know of.
  void access_async(Block& block, int unit, uint32_t clock, const void* p, size_t bytes, unsigned flags,
                    const Where& at);
  // These 8 bytes are an mbarrier now; plain writes to them are errors, until one with kMbarrier.
  void mark_mbarrier(const Block& block, size_t offset);
  // A copy has landed and is from now on a write of `unit` (a thread or asynchronous unit) at its time
  // `clock`.
  void land(const Block& block, const void* p, size_t bytes, int unit, uint32_t clock);

  // After a block: writes into the gaps between variables, which the fast build cannot see otherwise.
  void check_gaps(const Block& block) const;

 private:
  static constexpr size_t kArena = 320 << 10, kGuard = 64 << 10;
  static constexpr size_t kGap = 128, kWideGap = 2 << 10;  // wide: in the checked build, while there is room
  static constexpr size_t kAddressable = 256 << 10;        // by the descriptors of wgmma
  struct Variable {
    const void* key;  // nullptr: the dynamic one
    const char* name;
    size_t offset, bytes;
    size_t gap;  // bytes behind it that belong to nobody
  };
  // One a byte.  A time of 0: nobody.
  struct Cell {
    uint32_t write_clock, read_clock[2];
    uint32_t atomic_clock;  // of an atomic before the last one, which that one did not know of
    uint16_t writer, reader[2], atomic_writer;
    uint8_t state;
  };
  void check(Block& block, int unit, uint32_t clock, size_t offset, size_t bytes, unsigned flags,
             const Where& at);

  char* arena_ = nullptr;
  Cell* shadow_ = nullptr;  // of the checked build
  size_t used_ = 0;
  std::vector<Variable> variables_;
};

// Shorthands for the current thread; an address outside shared memory is an error.
void access_shared(const void* p, size_t bytes, unsigned flags, const Where& at);
uint32_t shared_offset(const void* p, const Where& at);  // what smem_u32() gives

}  // namespace simt::host
