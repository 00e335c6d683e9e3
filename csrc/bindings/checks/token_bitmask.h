// The checks of apply_token_bitmask, the same on every device.
#pragma once
#include "bindings/check.h"
#include "token_bitmask_params.h"

namespace inferx {

// `rows` is null where the call has none.  The values in it are looked at by the CPU's binding only.
inline TokenBitmaskParams fill_token_bitmask(const char* op, const TensorRef& logits,
                                             const TensorRef& bitmask, const TensorRef* rows) {
  Sym num_rows{"R"}, vocab{"V"}, masks{"M"}, words{"W"};
  Arg(op, "logits", logits).dtype({DType::f32, DType::f16, DType::bf16}).shape({num_rows, vocab});
  Arg(op, "logits", logits).last_dim_contiguous().not_self_overlapping();
  Arg(op, "bitmask", bitmask).dtype({DType::i32});
  if (rows) {
    Arg(op, "bitmask", bitmask).shape({masks, words});
    Arg(op, "rows", *rows).dtype({DType::i64, DType::i32}).shape({masks}).contiguous();
    Arg(op, "rows", *rows).same_device("logits", logits);
  } else {
    Arg(op, "bitmask", bitmask).shape({num_rows, words});
    masks.value = num_rows.value;
  }
  Arg(op, "bitmask", bitmask).last_dim_contiguous().same_device("logits", logits);
  check_disjoint(op, "logits", logits, {{"bitmask", &bitmask}, {"rows", rows}});
  return {logits.data,
          logits.dtype,
          num_rows.value,
          vocab.value,
          logits.stride(0),
          bitmask.ptr<const uint32_t>(),
          masks.value,
          words.value,
          bitmask.stride(0),
          rows ? rows->data : nullptr,
          rows && rows->dtype == DType::i64};
}

}  // namespace inferx
