// Fibers: a machine context that can be left and entered again.
#pragma once
#include <cstddef>

#if !defined(__x86_64__) || defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif

namespace simt::host {

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)

using Context = void*;  // the stack pointer; what a callee must save lies on the stack

extern "C" void simt_switch_context(Context* save, Context to);
inline void switch_context(Context& from, Context& to) { simt_switch_context(&from, to); }

#else

using Context = ucontext_t;
inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

#endif

// A context that starts `entry` (which never returns) on the stack whose top is `top`.
void prepare_context(Context& context, char* stack, char* top, void (*entry)());

}  // namespace simt::host
