#include "simt/host/error.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "simt/host/block.h"
#include "simt/host/source_line.h"
#include "simt/launch.h"

namespace simt::host {
namespace {

std::mutex mutex;
std::string first_report;
std::atomic<bool> has_report{false};

std::string schedule() {
  static const char* const orders[] = {"forward", "reverse", "random"};
  std::string text = std::string(" [order ") + orders[static_cast<int>(options.order)];
  if (options.order == Order::random || options.preempt != 0)
    text += ", seed " + std::to_string(options.seed);
  if (options.preempt != 0) text += ", preempt " + std::to_string(options.preempt);
  return text + "]";
}

std::string to_string(uint3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

std::string heading(const Block& block) {
  return kernel_name(block.launch->kernel) + " block " + to_string(block.index);
}

std::string place(const Where& at) {
  return at.pc == nullptr && at.site.file == nullptr ? "" : " at " + to_string(at);
}

}  // namespace

void fail(const Where& at, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  Block& block = *current->block;
  vsnprintf(block.failure.message, sizeof block.failure.message, format, arguments);
  va_end(arguments);
  block.failure.thread = current;
  block.failure.at = at;
  Context nowhere;
  current = nullptr;
  switch_context(nowhere, block.outside);
  __builtin_unreachable();
}

bool report_failure(const Block& block) {
  const Failure& failure = block.failure;
  if (failure.thread == nullptr) return false;
  if (!failed()) {
    report(heading(block) + " thread " + to_string(failure.thread->index) + place(failure.at) + ": " +
           failure.message + schedule());
  }
  return true;
}

void report(const Block& block, const Where& at, const std::string& message) {
  if (!failed()) report(heading(block) + place(at) + ": " + message + schedule());
}

void report(const std::string& message) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (has_report) return;
  first_report = message;
  has_report = true;
}

bool failed() { return has_report.load(std::memory_order_relaxed); }

std::string take_error() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::string message;
  message.swap(first_report);
  has_report = false;
  return message;
}

std::string to_string(const Where& at) {
  if (at.pc != nullptr) return source_line(at.pc);
  if (at.site.file == nullptr) return "?";
  const char* slash = strrchr(at.site.file, '/');
  return std::string(slash != nullptr ? slash + 1 : at.site.file) + ":" + std::to_string(at.site.line);
}

std::string kernel_name(const void* kernel) { return function_name(kernel); }

bool same_place(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

}  // namespace simt::host
