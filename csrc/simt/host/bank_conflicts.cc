#include "simt/host/bank_conflicts.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "simt/control.h"
#include "simt/host/block.h"
#include "simt/host/source_line.h"

namespace simt::host {
namespace {

constexpr uint32_t kNobody = ~0u;

struct Count {
  uint64_t operations = 0, extra = 0;
};
std::mutex mutex;
std::map<const void*, Count> by_instruction;

}  // namespace

void note_shared_access(const Thread& thread, size_t offset, size_t bytes, const void* pc) {
  SharedOps& ops = thread.block->warps[thread.warp].shared_ops;
  SharedOps::Instruction* found = nullptr;
  for (SharedOps::Instruction& i : ops.instructions)
    if (i.pc == pc) found = &i;
  if (found == nullptr) {
    ops.instructions.push_back({pc, static_cast<uint32_t>(bytes), {}, {}});
    found = &ops.instructions.back();
  }
  const size_t operation = found->times[thread.lane]++;
  if (found->addresses.size() <= operation * 32) found->addresses.resize(operation * 32 + 32, kNobody);
  found->addresses[operation * 32 + static_cast<size_t>(thread.lane)] = static_cast<uint32_t>(offset);
}

int extra_cycles(const uint32_t (&addresses)[32], uint32_t bytes) {
  // The 32 banks give 128 bytes a cycle: wide accesses go in groups of lanes.
  const size_t group = bytes <= 4 ? 32 : 128 / std::max(bytes, 8u);
  const uint32_t words = std::max(1u, bytes / 4);
  int extra = 0;
  for (size_t first = 0; first < 32; first += group) {
    std::vector<uint32_t> distinct;
    for (size_t lane = first; lane < std::min<size_t>(first + group, 32); ++lane) {
      if (addresses[lane] == kNobody) continue;
      for (uint32_t w = 0; w < words; ++w) distinct.push_back(addresses[lane] / 4 + w);
    }
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    int used[32] = {};
    for (const uint32_t word : distinct) ++used[word % 32];
    extra += std::max(0, *std::max_element(used, used + 32) - 1);
  }
  return extra;
}

void flush_bank_conflicts(Block& block) {
  if (!options.bank_conflicts) return;
  for (int w = 0; w < block.num_warps; ++w) {
    SharedOps& ops = block.warps[w].shared_ops;
    for (const SharedOps::Instruction& i : ops.instructions) {
      Count count;
      for (size_t at = 0; at < i.addresses.size(); at += 32) {
        uint32_t addresses[32];
        std::copy_n(i.addresses.begin() + static_cast<std::ptrdiff_t>(at), 32, addresses);
        ++count.operations;
        count.extra += static_cast<uint64_t>(extra_cycles(addresses, i.bytes));
      }
      block.count[k_shared_ops] += count.operations;
      block.count[k_shared_extra] += count.extra;
      const std::lock_guard<std::mutex> lock(mutex);
      by_instruction[i.pc].operations += count.operations;
      by_instruction[i.pc].extra += count.extra;
    }
    ops.instructions.clear();
  }
}

std::vector<LineConflicts> take_bank_conflicts() {
  std::map<const void*, Count> counts;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    counts.swap(by_instruction);
  }
  std::map<std::string, Count> by_line;
  for (const auto& [pc, count] : counts) {
    Count& line = by_line[source_line(pc)];
    line.operations += count.operations;
    line.extra += count.extra;
  }
  std::vector<LineConflicts> lines;
  for (const auto& [line, count] : by_line) lines.push_back({line, count.operations, count.extra});
  std::sort(lines.begin(), lines.end(),
            [](const LineConflicts& a, const LineConflicts& b) { return a.extra > b.extra; });
  return lines;
}

}  // namespace simt::host
