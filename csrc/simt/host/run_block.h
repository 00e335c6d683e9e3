// Running the blocks of a launch one after another on one OS thread.
#pragma once
#include <cstdint>
#include <memory>

#include "simt/host/block.h"
#include "simt/launch.h"

namespace simt::host {

class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void prepare(const Launch& launch, bool checked);
  void run(uint64_t number);  // of the block in the grid
  void add_stats();           // what the blocks since prepare() counted

 private:
  void reset_block(uint64_t number);

  std::unique_ptr<Block> block_;
  bool checked_ = false;
};

}  // namespace simt::host
