#include "simt/selftest/registry.h"

namespace simt::selftest {

std::map<std::string, Run>& registry() {
  static std::map<std::string, Run> runs;  // here, so that it exists before the first registration
  return runs;
}

}  // namespace simt::selftest
