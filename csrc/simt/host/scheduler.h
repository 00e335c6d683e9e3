// Which thread of a block runs.  A thread runs until it has to wait (or is preempted); then the next ready
// one in the configured order goes on.
#pragma once
#include "simt/host/block.h"

namespace simt::host {

// The current thread waits until wake() names it.  `op` and `at` are for the report of a deadlock.
void wait_in(const char* op, Site at);
void wake(Block& block, int warp, unsigned lanes);
void wake(Block& block, ThreadSet& threads);  // and empties the set
// Another ready thread may go on; the current one stays ready.
void yield();
// For a loop that polls: as yield(), lets late copies land, and reports a loop that nobody will end.
void spin(Site at);

uint64_t random(Block& block);  // of the block's own sequence, which order and seed fix

// The body of each fiber: the kernel, then the thread's end.
void run_thread();

}  // namespace simt::host
