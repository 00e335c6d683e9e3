// How bindings and tests drive the executor.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "simt/host/fences.h"

namespace simt::host {

// Runs launchers with these tensors as all the memory that kernels may touch.  Returns what was found, or "".
// `error` is what `launch` returned.  One caller at a time, others wait; call it without Python's lock.
std::string run_session(const std::vector<View>& tensors, const std::function<int()>& launch, int* error);

// Throws std::invalid_argument for unknown names and values.  Not during a session.
void configure(const std::map<std::string, int64_t>& values);
std::map<std::string, int64_t> configuration();

// Counters since the last call.
std::map<std::string, uint64_t> take_stats();
// Shared loads and stores by source line, with configure({"bank_conflicts": 1}) in the checked build: how
// many warp-wide operations, and how many further cycles they took.
struct LineConflicts {
  std::string line;
  uint64_t operations, extra;
};
std::vector<LineConflicts> take_bank_conflicts();

bool is_checked();  // whether the kernels of this module were compiled with checks

}  // namespace simt::host
