// Counts bank conflicts of ordinary shared loads and stores, in the checked build on demand.
//
// The lanes of a warp run one after another; the n-th time that each of them comes to one instruction counts
// as one operation of the warp.  Lanes that have left the others behind (divergence, loops of different
// lengths) are matched in the same way, so the figure is exact where the warp runs together and near it
// elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt::host {

struct Block;
struct Thread;

// One instruction's operations of one warp that not all lanes may have come to yet.
struct SharedOps {
  struct Instruction {
    const void* pc;
    uint32_t bytes;
    uint32_t times[32];               // that each lane has been there
    std::vector<uint32_t> addresses;  // [operation][lane]; kNobody
  };
  std::vector<Instruction> instructions;
};

void note_shared_access(const Thread& thread, size_t offset, size_t bytes, const void* pc);
// Counts what a block's warps have gathered.
void flush_bank_conflicts(Block& block);
// Cycles beyond the first that 32 lanes take for accesses of `bytes` each at these addresses.
int extra_cycles(const uint32_t (&addresses)[32], uint32_t bytes);

}  // namespace simt::host
