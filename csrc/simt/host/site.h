// Where in the source something happens.
#pragma once

namespace simt {

// The line of a call.  Functions of the executor's build take it as a last, defaulted parameter.
struct Site {
  const char* file = nullptr;
  int line = 0;
};

namespace host {

// A Site, or the machine address of a load or store, which is turned into a line only for an error message.
struct Where {
  Site site;
  const void* pc = nullptr;

  Where() = default;
  Where(Site at) : site(at) {}  // NOLINT: implicit, a Site is a place
  static Where at_pc(const void* pc) {
    Where where;
    where.pc = pc;
    return where;
  }
};

}  // namespace host
}  // namespace simt
