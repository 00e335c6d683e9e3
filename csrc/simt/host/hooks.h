// What the compiler calls in the checked build, where kernels are compiled with -fsanitize=thread and some of
// -fsanitize=undefined: every load and store is checked before it happens.
#pragma once

namespace simt::host {

extern bool checked_build;  // whether any code of this module is compiled so

}  // namespace simt::host
