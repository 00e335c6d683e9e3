#include "simt/host/source_line.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace simt::host {
namespace {

// Lines that addr2line (binutils) prints about an address.
std::vector<std::string> addr2line(const char* options, uintptr_t address) {
  std::vector<std::string> lines;
  Dl_info module;
  if (dladdr(reinterpret_cast<const void*>(address), &module) == 0) return lines;
  char command[4096];
  const auto offset = address - reinterpret_cast<uintptr_t>(module.dli_fbase);
  snprintf(command, sizeof command, "addr2line %s -e '%s' 0x%zx 2>/dev/null", options, module.dli_fname,
           static_cast<size_t>(offset));
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return lines;
  char line[4096];
  while (fgets(line, sizeof line, pipe) != nullptr) {
    lines.emplace_back(line);
    if (lines.back().back() == '\n') lines.back().pop_back();
  }
  pclose(pipe);
  return lines;
}

bool is_header_of_ours(const std::string& path) {
  const size_t name = path.rfind('/');
  if (name == std::string::npos) return false;
  const size_t folder = path.rfind('/', name - 1);
  const std::string in = path.substr(folder + 1, name - folder - 1);
  return in == "simt" || in == "host" || path.find("/include/") != std::string::npos;
}

}  // namespace

std::string source_line(const void* pc) {
  std::string found = "?";
  for (std::string line : addr2line("-i", reinterpret_cast<uintptr_t>(pc) - 1)) {
    line = line.substr(0, line.find(' '));  // without "(discriminator 2)"
    const std::string path = line.substr(0, line.rfind(':'));
    if (line.empty() || line[0] == '?') continue;
    found = line.substr(line.rfind('/') + 1);
    if (!is_header_of_ours(path)) break;
  }
  return found;
}

std::string function_name(const void* address) {
  // Pairs of function and line, innermost first: the last function is the one that all others are inlined
  // into.
  const std::vector<std::string> lines = addr2line("-f -C -i", reinterpret_cast<uintptr_t>(address));
  if (lines.size() < 2) return "kernel";
  const std::string& name = lines[lines.size() - 2];
  if (name.empty() || name[0] == '?') return "kernel";
  // "void a::(anonymous namespace)::kernel<a::T, 4>(a::Params)": the name starts after the last ':' or ' '
  // outside of brackets and ends before the parameters.
  size_t begin = 0, end = name.size();
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (depth == 0 && name[i] == '(') {
      end = i;
      break;
    }
    if (name[i] == '<' || name[i] == '(') ++depth;
    if (name[i] == '>' || name[i] == ')') --depth;
    if (depth == 0 && (name[i] == ':' || name[i] == ' ')) begin = i + 1;
  }
  return name.substr(begin, end - begin);
}

}  // namespace simt::host
