// The kernels that test the executor itself (tests/simt), by name:
//
//   __global__ void copy(const int* in, int* out, int64_t n) { ... }
//   SELFTEST(copy) { return test.launch(copy, test.in<int>(0), test.out<int>(0), test.number(0)); }
//
// In Python: module.selftest("copy", inputs=[x], outputs=[y], numbers=[3], grid=(1,), block=(32,), shared=0).
#pragma once
#include "simt/selftest/registry.h"
#include "simt/simt.h"

#define SELFTEST(name)                                                                   \
  static int selftest_run_##name(const simt::selftest::Test& test);                      \
  static const simt::selftest::Registration selftest_##name(#name, selftest_run_##name); \
  static int selftest_run_##name(const simt::selftest::Test& test)
