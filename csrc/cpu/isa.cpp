#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace inferx::cpu {
namespace {

constexpr const char* kNames[] = {"base", "v3", "v4", "v4vnni"};

Isa cap_from_environment() {
  const char* value = std::getenv("INFERX_CPU_ISA");
  if (!value || !*value) return Isa::v4vnni;
  for (int i = 0; i < 4; ++i) {
    if (std::strcmp(value, kNames[i]) == 0) return static_cast<Isa>(i);
  }
  throw std::invalid_argument(std::string("INFERX_CPU_ISA: expected base, v3, v4 or v4vnni, got '") + value +
                              "'");
}

Isa supported() {
#ifdef INFERX_X86_ISAS
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (v4 && __builtin_cpu_supports("avx512vnni")) return Isa::v4vnni;
  return v4 ? Isa::v4 : v3 ? Isa::v3 : Isa::base;
#else
  return Isa::base;
#endif
}

}  // namespace

Isa active_isa() {
  static const Isa isa = [] {
    const Isa cap = cap_from_environment(), best = supported();
    return cap < best ? cap : best;
  }();
  return isa;
}

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

}  // namespace inferx::cpu
