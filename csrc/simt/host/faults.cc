#include "simt/host/faults.h"

#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdlib>

#include "simt/host/block.h"
#include "simt/host/error.h"

namespace simt::host {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
constexpr int kNumSignals = sizeof kSignals / sizeof *kSignals;
// Who had the signal when we came first, and when we came last.  The latter may be another module's executor
// that sends on to us: then the former is asked.
struct sigaction first[kNumSignals], latest[kNumSignals];
bool installed = false;
__thread bool sent_on __attribute__((tls_model("initial-exec"))) = false;

const char* program_counter(void* context) {
  const auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<const char*>(machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const char*>(machine->pc);
#else
  return nullptr;
#endif
}

// Not a kernel's: as if we were not here.
void send_on(int signal, siginfo_t* info, void* context) {
  int i = 0;
  while (kSignals[i] != signal) ++i;
  const struct sigaction next = sent_on ? first[i] : latest[i];
  if ((next.sa_flags & SA_SIGINFO) == 0 && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN)) {
    struct sigaction by_default{};
    by_default.sa_handler = SIG_DFL;
    sigaction(signal, &by_default, nullptr);
    raise(signal);
    return;
  }
  const bool before = sent_on;
  sent_on = true;
  if ((next.sa_flags & SA_SIGINFO) != 0)
    next.sa_sigaction(signal, info, context);
  else
    next.sa_handler(signal);
  sent_on = before;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (current == nullptr) return send_on(signal, info, context);
  const char* pc = program_counter(context);
  const Where at = pc != nullptr ? Where::at_pc(pc + 1) : Where{};  // as if it were a return address
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (signal == SIGILL || signal == SIGFPE)
    fail(at, "trap: division by zero, __trap, or code that the compiler proved to be undefined");
  const auto stack = reinterpret_cast<uintptr_t>(current->stack);
  if (address < stack && address >= stack - (64 << 10))
    fail(at, "stack overflow: a thread's local variables take more than %zu KiB", kStackBytes >> 10);
  fail(at, "memory fault at %p: out of bounds, or a misaligned vector access", info->si_addr);
}

}  // namespace

void install_fault_handlers() {
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  // NODEFER: fail() leaves the handler without returning, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < kNumSignals; ++i) {
    struct sigaction now{};
    sigaction(kSignals[i], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal) continue;
    latest[i] = now;
    if (!installed) first[i] = now;
    sigaction(kSignals[i], &action, nullptr);
  }
  installed = true;
}

namespace {
struct StackMemory {
  static constexpr size_t kBytes = 64 << 10;
  void* memory = malloc(kBytes);
  stack_t before{};
  ~StackMemory() { free(memory); }
};
thread_local StackMemory stack_memory;
}  // namespace

SignalStack::SignalStack() {
  stack_t ours{};
  ours.ss_sp = stack_memory.memory;
  ours.ss_size = StackMemory::kBytes;
  sigaltstack(&ours, &stack_memory.before);
}

SignalStack::~SignalStack() { sigaltstack(&stack_memory.before, nullptr); }

}  // namespace simt::host
