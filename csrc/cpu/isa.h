// Choosing among the copies of csrc/cpu/isa/*.cpp, one per instruction set.
//
// Each family of kernels has a table of function pointers.  Its header says
//     INFERX_DECLARE_KERNELS(NormKernels, norm_kernels)
// every copy of its file in isa/ defines `const NormKernels norm_kernels` in namespace
// inferx::cpu::INFERX_ISA, and its driver in csrc/cpu/ says
//     INFERX_SELECT_KERNELS(NormKernels, norm_kernels)
// which defines inferx::cpu::norm_kernels(), the table for this machine.  Only files in isa/int8/ have a copy
// for v4vnni; their families say INFERX_DECLARE_INT8_KERNELS and INFERX_SELECT_INT8_KERNELS.
#pragma once

namespace inferx::cpu {

// v3: AVX2, FMA, F16C, BMI2.  v4: and AVX-512 F, BW, VL, DQ.  v4vnni: and AVX-512 VNNI.
enum class Isa { base, v3, v4, v4vnni };

// The best one that was compiled, that the CPU has and that INFERX_CPU_ISA (a cap, one of these) allows.
// Throws std::invalid_argument for any other value of INFERX_CPU_ISA.
Isa active_isa();
const char* isa_name(Isa isa);

}  // namespace inferx::cpu

#ifdef INFERX_X86_ISAS
#define INFERX_DECLARE_KERNELS(Table, name) \
  namespace base {                          \
  extern const Table name;                  \
  }                                         \
  namespace v3 {                            \
  extern const Table name;                  \
  }                                         \
  namespace v4 {                            \
  extern const Table name;                  \
  }                                         \
  const Table& name();
#define INFERX_SELECT_KERNELS(Table, name)                                               \
  const Table& name() {                                                                  \
    static const Table* const tables[] = {&base::name, &v3::name, &v4::name, &v4::name}; \
    static const Table& chosen = *tables[static_cast<int>(active_isa())];                \
    return chosen;                                                                       \
  }
#define INFERX_DECLARE_INT8_KERNELS(Table, name) \
  namespace v4vnni {                             \
  extern const Table name;                       \
  }                                              \
  INFERX_DECLARE_KERNELS(Table, name)
#define INFERX_SELECT_INT8_KERNELS(Table, name)                                              \
  const Table& name() {                                                                      \
    static const Table* const tables[] = {&base::name, &v3::name, &v4::name, &v4vnni::name}; \
    static const Table& chosen = *tables[static_cast<int>(active_isa())];                    \
    return chosen;                                                                           \
  }
#else
#define INFERX_DECLARE_KERNELS(Table, name) \
  namespace base {                          \
  extern const Table name;                  \
  }                                         \
  const Table& name();
#define INFERX_SELECT_KERNELS(Table, name) \
  const Table& name() { return base::name; }
#define INFERX_DECLARE_INT8_KERNELS INFERX_DECLARE_KERNELS
#define INFERX_SELECT_INT8_KERNELS INFERX_SELECT_KERNELS
#endif
