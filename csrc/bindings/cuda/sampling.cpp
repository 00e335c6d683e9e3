#include "kernels/sampling.h"

#include "bindings/checks/sampling.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

struct RunOnDevice {
  template <class Params>
  static void run(const SamplingArgs& args, cuda::Error (*launch)(const Params&, void*),
                  const Params& params) {
    DeviceCall call(args.op(), args.begin()->name, args.begin()->tensor);
    for (const auto& item : args) {
      item.written ? call.writes(item.name, item.tensor) : call.reads(item.name, item.tensor);
    }
    call.run([&](void* stream) { return launch(params, stream); });
  }
  void sample_tokens(const SamplingArgs& args, const sampling::SampleParams& p) const {
    run(args, &cuda::launch_sample_tokens, p);
  }
  void apply_logits_processors(const SamplingArgs& args, const sampling::ProcessorParams& p) const {
    run(args, &cuda::launch_apply_logits_processors, p);
  }
  void token_logprobs(const SamplingArgs& args, const sampling::LogprobParams& p) const {
    run(args, &cuda::launch_token_logprobs, p);
  }
};

}  // namespace

void bind_cuda_sampling(py::module_& m) { define_sampling_ops(m, RunOnDevice{}); }

}  // namespace inferx
