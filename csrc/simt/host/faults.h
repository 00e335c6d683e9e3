// Faults of a kernel (bad addresses, stack overflow, division by zero) become errors.
#pragma once

namespace simt::host {

// While one lives, signals that come from a CUDA thread end its block with an error; others go to whom they
// went before.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;
};

// A stack of their own for the handlers of this OS thread: the thread's may have overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
};

}  // namespace simt::host
