// The OS threads that run blocks.  They start with the first launch that has several blocks and stay.
#pragma once
#include <functional>

namespace simt::host {

// Calls work() on this thread and, as far as they come in time, on up to `helpers` others; returns when all
// those calls have.  One call at a time.
void run_in_pool(int helpers, const std::function<void()>& work);

}  // namespace simt::host
