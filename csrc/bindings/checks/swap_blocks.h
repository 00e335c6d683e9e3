// The checks of swap_blocks, the same on every device.
#pragma once
#include "bindings/checks/blocks.h"

namespace inferx {

// How both tensors hold a block.
struct SwapBlocksArgs {
  BlockShape shape;
  BlockSteps from_steps, to_steps;
};

inline SwapBlocksArgs check_swap_blocks(const char* op, const TensorRef& src, const TensorRef& dst,
                                        const TensorRef& mapping) {
  const Arg arg(op, "src", src);
  arg.min_ndim(2).last_dim_contiguous().not_self_overlapping();
  if (src.dtype == DType::other) arg.expected("a dtype inferx knows", "another");
  Arg(op, "dst", dst).same_dtype("src", src).last_dim_contiguous().not_self_overlapping();
  if (dst.ndim != src.ndim || !std::equal(src.shape + 1, src.shape + src.ndim, dst.shape + 1)) {
    fail_expected(op, "dst", "blocks like src's, " + shape_string(src) + " but for the first dimension",
                  shape_string(dst));
  }
  if (src.device_type == dst.device_type) Arg(op, "dst", dst).same_device("src", src);
  check_disjoint(op, "dst", dst, "src", src);
  check_mapping_shape(op, mapping);
  if (!mapping.is_cpu()) Arg(op, "block_mapping", mapping).expected("a CPU tensor", device_string(mapping));
  check_disjoint(op, "dst", dst, "block_mapping", mapping);
  check_pairs(op, mapping, src.size(0), dst.size(0), false);
  SwapBlocksArgs args;
  args.shape = block_shape(op, "src", src, dst.strides + 1, args.from_steps, args.to_steps);
  args.to_steps.block = dst.stride(0) * static_cast<int64_t>(dtype_size(dst.dtype));
  return args;
}

}  // namespace inferx
