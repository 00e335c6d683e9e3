// Pairs of blocks, grouped into as few copies as possible.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace inferx {

// `count` pairs: (source + i, destination + i).
struct BlockRun {
  int64_t source, destination, count;
};

// The pairs may be copied in any order, so they are sorted first: blocks that were handed out one after the
// other are one run whatever the order they come in.
inline std::vector<BlockRun> block_runs(const int64_t* pairs, int64_t num_pairs) {
  std::vector<BlockRun> runs(static_cast<size_t>(num_pairs));
  for (int64_t i = 0; i < num_pairs; ++i) runs[i] = {pairs[2 * i], pairs[2 * i + 1], 1};
  std::sort(runs.begin(), runs.end(), [](const BlockRun& a, const BlockRun& b) {
    return a.source != b.source ? a.source < b.source : a.destination < b.destination;
  });
  size_t kept = 0;
  for (const BlockRun& run : runs) {
    if (kept > 0) {
      BlockRun& last = runs[kept - 1];
      if (run.source == last.source + last.count && run.destination == last.destination + last.count) {
        ++last.count;
        continue;
      }
    }
    runs[kept++] = run;
  }
  runs.resize(kept);
  return runs;
}

}  // namespace inferx
