// From machine addresses to what stands in the source, through the debug information.  Slow: for errors only.
#pragma once
#include <string>

namespace simt::host {

// "norm.cu:31" of the call or access that returns to `pc`; of inlined functions the innermost that is not one
// of this folder's or the system's headers.  "?" if unknown.
std::string source_line(const void* pc);
// The name of the function at `address` without namespaces and parameters.
std::string function_name(const void* address);

}  // namespace simt::host
