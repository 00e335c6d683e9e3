// A launch that takes longer than options.time_limit ends with an error.
#pragma once
#include <string>

#include "simt/host/site.h"

namespace simt::host {

struct Block;

void start_clock();  // of a launch
bool out_of_time();
std::string time_is_up(const char* where);  // the report
// At every few thousandth call for this block: the current thread fails if the time is up.
void check_time(Block& block, Site at);

}  // namespace simt::host
