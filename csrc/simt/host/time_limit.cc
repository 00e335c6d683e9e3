#include "simt/host/time_limit.h"

#include <atomic>
#include <chrono>

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/options.h"

namespace simt::host {
namespace {

std::atomic<int64_t> end{INT64_MAX};

int64_t now() {
  using std::chrono::steady_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void start_clock() { end = options.time_limit > 0 ? now() + int64_t{options.time_limit} * 1000 : INT64_MAX; }

bool out_of_time() {
  const int64_t last = end.load(std::memory_order_relaxed);
  return last != INT64_MAX && now() > last;
}

std::string time_is_up(const char* where) {
  return "the launch takes more than time_limit = " + std::to_string(options.time_limit) + " s; ended " +
         where;
}

void check_time(Block& block, Site at) {
  if ((++block.visits & 0x3FF) == 0 && out_of_time())
    fail(at, "the launch takes more than time_limit = %d s; ended at this thread", options.time_limit);
}

}  // namespace simt::host
