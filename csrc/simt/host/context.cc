#include "simt/host/context.h"

#include <cstdint>
#include <cstring>

namespace simt::host {

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)

// Saves what the System V ABI lets a caller expect to survive, swaps stacks, restores.  swapcontext() would
// do the same with two system calls, at twelve times the cost.
asm(R"(
.text
.globl simt_switch_context
.hidden simt_switch_context
.type simt_switch_context,@function
simt_switch_context:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size simt_switch_context,.-simt_switch_context
)");

void prepare_context(Context& context, char* /*stack*/, char* top, void (*entry)()) {
  auto sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--sp = nullptr;  // entry's return address: never used, keeps the stack aligned as after a call
  *--sp = reinterpret_cast<void*>(entry);
  sp -= 6;
  memset(sp, 0, 6 * sizeof *sp);
  context = sp;
}

#else

void prepare_context(Context& context, char* stack, char* top, void (*entry)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = static_cast<size_t>(top - stack);
  context.uc_link = nullptr;
  makecontext(&context, entry, 0);
}

#endif

}  // namespace simt::host
