#include "cpu/sampling.h"

#include "bindings/bindings.h"
#include "bindings/checks/sampling.h"

namespace py = pybind11;

namespace inferx {
namespace {

struct RunOnCpu {
  template <class Params>
  static void run(const SamplingArgs& args, void (*op)(const Params&), const Params& params) {
    for (const auto& item : args) Arg(args.op(), item.name, item.tensor).on_cpu();
    py::gil_scoped_release nogil;
    op(params);
  }
  void sample_tokens(const SamplingArgs& args, const sampling::SampleParams& p) const {
    run(args, &cpu::sample_tokens, p);
  }
  void apply_logits_processors(const SamplingArgs& args, const sampling::ProcessorParams& p) const {
    run(args, &cpu::apply_logits_processors, p);
  }
  void token_logprobs(const SamplingArgs& args, const sampling::LogprobParams& p) const {
    run(args, &cpu::token_logprobs, p);
  }
};

}  // namespace

void bind_sampling(py::module_& m) { define_sampling_ops(m, RunOnCpu{}); }

}  // namespace inferx
