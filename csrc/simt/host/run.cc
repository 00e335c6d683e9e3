// Launches and sessions.
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "simt/control.h"
#include "simt/host/error.h"
#include "simt/host/faults.h"
#include "simt/host/global_memory.h"
#include "simt/host/global_races.h"
#include "simt/host/hooks.h"
#include "simt/host/options.h"
#include "simt/host/pool.h"
#include "simt/host/run_block.h"
#include "simt/host/time_limit.h"
#include "simt/launch.h"

namespace simt::host {

Options options;
std::atomic<uint64_t> stats[kNumStats];

namespace {

// What cudaError_t says to a launcher.
constexpr int kInvalidConfiguration = 9, kLaunchFailure = 719;
constexpr size_t kMaxParameterBytes = 4096;

std::mutex session_mutex;  // one session at a time, and no configure() in it

std::string describe(dim3 d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

// What a GPU would refuse, or "".
std::string check_launch(const Launch& launch) {
  const dim3 b = launch.block, g = launch.grid;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (threads == 0 || threads > kMaxThreads || b.z > 64)
    return "block " + describe(b) + ": 1 to 1024 threads, z up to 64";
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7FFFFFFF || g.y > 65535 || g.z > 65535)
    return "grid " + describe(g) + ": 1 to 2^31 - 1 in x, to 65535 in y and z";
  if (launch.shared_bytes > options.shared_limit)
    return std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory, limit " +
           std::to_string(options.shared_limit);
  if (launch.parameter_bytes > kMaxParameterBytes)
    return std::to_string(launch.parameter_bytes) + " bytes of arguments, limit 4096";
  return "";
}

int pool_size() {
  if (options.threads > 0) return options.threads;
  // More than 16 would run into the kernel's limit of mappings: each CUDA thread's stack has a guard page.
  return static_cast<int>(std::min(16u, std::max(1u, std::thread::hardware_concurrency())));
}

void run_blocks(const Launch& launch) {
  const uint64_t total = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    thread_local BlockRunner runner;
    uint64_t i = next.fetch_add(1);
    if (i >= total) return;
    try {
      const SignalStack signal_stack;
      runner.prepare(launch, checked_build);
      for (; i < total && !failed(); i = next.fetch_add(1)) {
        if (out_of_time()) {
          report(kernel_name(launch.kernel) + ": " + time_is_up("between two blocks"));
          break;
        }
        runner.run(options.order == Order::reverse ? total - 1 - i : i);
      }
      runner.add_stats();
    } catch (const std::exception& error) {  // no memory for stacks or shadows
      report(kernel_name(launch.kernel) + ": " + error.what());
    }
  };
  const auto helpers = static_cast<int>(std::min<uint64_t>(total, static_cast<uint64_t>(pool_size()))) - 1;
  run_in_pool(helpers, work);
}

}  // namespace

int run(const Launch& launch) {
  if (failed()) return kLaunchFailure;
  const std::string refused = check_launch(launch);
  if (!refused.empty()) {
    report(kernel_name(launch.kernel) + ": launch: " + refused);
    return kInvalidConfiguration;
  }
  ++stats[k_launches];
  if (checked_build) begin_race_checks();
  install_fault_handlers();
  start_clock();
  run_blocks(launch);
  return failed() ? kLaunchFailure : 0;
}

int num_sms() { return options.num_sms; }

std::string run_session(const std::vector<View>& tensors, const std::function<int()>& launch, int* error) {
  std::vector<Fence> fences(tensors.begin(), tensors.end());
  const std::lock_guard<std::mutex> lock(session_mutex);
  set_fences(std::move(fences), checked_build);
  take_error();  // of a session that ended with an exception
  *error = launch();
  return take_error();
}

namespace {

struct Setting {
  const char* name;
  int64_t low, high;
  int64_t (*get)();
  void (*set)(int64_t);
};
const Setting settings[] = {
#define SIMT_SETTING(name, low, high)                                   \
  {#name, low, high, [] { return static_cast<int64_t>(options.name); }, \
   [](int64_t v) { options.name = static_cast<decltype(options.name)>(v); }}
    SIMT_SETTING(order, 0, 2),
    SIMT_SETTING(seed, INT64_MIN, INT64_MAX),
    SIMT_SETTING(preempt, 0, 1 << 30),
    SIMT_SETTING(threads, 0, 256),
    SIMT_SETTING(num_sms, 1, 1 << 20),
    SIMT_SETTING(shared_limit, 0, 256 << 10),
    SIMT_SETTING(time_limit, 0, 1 << 30),
    SIMT_SETTING(uninitialised, 0, 1),
    SIMT_SETTING(bank_conflicts, 0, 1),
#undef SIMT_SETTING
};

}  // namespace

void configure(const std::map<std::string, int64_t>& values) {
  const std::lock_guard<std::mutex> lock(session_mutex);
  for (const auto& [name, value] : values) {
    const Setting* found = nullptr;
    for (const Setting& s : settings)
      if (name == s.name) found = &s;
    if (found == nullptr) throw std::invalid_argument("configure: there is no option '" + name + "'");
    if (value < found->low || value > found->high)
      throw std::invalid_argument("configure: " + name + ": " + std::to_string(value) + " is not in [" +
                                  std::to_string(found->low) + ", " + std::to_string(found->high) + "]");
    found->set(value);
  }
}

std::map<std::string, int64_t> configuration() {
  std::map<std::string, int64_t> values;
  for (const Setting& s : settings) values[s.name] = s.get();
  return values;
}

std::map<std::string, uint64_t> take_stats() {
  static const char* const names[] = {
#define SIMT_STAT(name) #name,
      SIMT_STATS(SIMT_STAT)
#undef SIMT_STAT
  };
  std::map<std::string, uint64_t> values;
  for (int i = 0; i < kNumStats; ++i) values[names[i]] = stats[i].exchange(0);
  return values;
}

bool is_checked() { return checked_build; }

}  // namespace simt::host
