// One call of an op on the device: where its tensors lie, which stream it runs on, what its kernels may
// touch.
//
//   DeviceCall call("rms_norm", "x", x);
//   call.reads("x", x).reads("weight", weight).writes("out", out);
//   call.run([&](void* stream) { return cuda::launch_rms_norm(params, stream); });
//
// In the CUDA build every tensor has to be on x's device, and run() uses torch's current stream there.  In
// the builds for the SIMT executor tensors are on the CPU, and kernels may touch no byte but the elements of
// what reads() and writes() name: not the gaps between the rows of a slice, for example.  Either way the
// checks of shapes, dtypes and overlaps are the caller's, with Arg.
#pragma once
#include <functional>
#include <vector>

#include "bindings/check.h"
#include "bindings/tensor_ref.h"
#include "kernels/launch.h"

namespace inferx {

class DeviceCall {
 public:
  DeviceCall(const char* op, const char* name, const TensorRef& tensor);

  DeviceCall& reads(const char* name, const TensorRef& tensor) { return add(name, tensor, false); }
  DeviceCall& writes(const char* name, const TensorRef& tensor) { return add(name, tensor, true); }

  // Runs launchers without the GIL and throws RuntimeError with what went wrong.
  void run(const std::function<cuda::Error(void* stream)>& launch);

 private:
  struct Use {
    const char* name;
    const TensorRef* tensor;
    bool written;
  };
  DeviceCall& add(const char* name, const TensorRef& tensor, bool written);

  const char* op_;
  const char* first_name_;
  const TensorRef& first_;
  std::vector<Use> uses_;
};

}  // namespace inferx
