// Errors: the first one ends the launch and becomes an exception in Python.
#pragma once
#include <string>

#include "simt/host/site.h"

namespace simt::host {

struct Block;

// Ends the current block with the error "kernel block (x,y,z) thread (x,y,z) at file:line: message".  For
// code that runs on a CUDA thread's stack, of which nothing is destroyed: hold no locks.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const Where& at, const char* format, ...);

// Whether fail() has ended the block; composes its report.  Called on the pool thread's own stack.
bool report_failure(const Block& block);
// Reports an error of a block as a whole.  The first report of a session stays, later ones are dropped.
void report(const Block& block, const Where& at, const std::string& message);
void report(const std::string& message);
bool failed();             // whether there is a report
std::string take_error();  // the report, which is then forgotten

std::string to_string(const Where& at);       // "norm.cu:31"
std::string kernel_name(const void* kernel);  // "rms_norm_kernel<float, float>"
bool same_place(Site a, Site b);

}  // namespace simt::host
