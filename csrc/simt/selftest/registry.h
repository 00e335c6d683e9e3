// The self-tests by name, for host code (see selftest.h).
#pragma once
#include <vector_types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simt {

// launch.h, which host code without device compiler does not include
template <class... P, class... A>
int launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void* stream, A&&... args);

namespace selftest {

struct Test {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<int64_t> numbers;
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;

  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(inputs.at(i));
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(outputs.at(i));
  }
  int64_t number(size_t i) const { return numbers.at(i); }
  template <class... P, class... A>
  int launch(void (*kernel)(P...), A&&... args) const {
    return simt::launch(kernel, grid, block, shared, stream, static_cast<A&&>(args)...);
  }
};

using Run = int (*)(const Test& test);
std::map<std::string, Run>& registry();
struct Registration {
  Registration(const char* name, Run run) { registry()[name] = run; }
};

}  // namespace selftest
}  // namespace simt
