// Faults of a kernel (bad addresses, stack overflow, division by zero) become errors.
#pragma once

namespace simt::host {

// From now on signals that come from a CUDA thread end its block with an error; others go to whom they went
// before.  Called before each launch, for who came first may have gone or been covered.  The handlers stay:
// several modules each have their own, and to take one away out of turn would take away the others'.
void install_fault_handlers();

// A stack of their own for the handlers of this OS thread: the thread's may have overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
};

}  // namespace simt::host
