#include "cpu/token_bitmask.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(TokenBitmaskKernels, token_bitmask_kernels)

void apply_token_bitmask(const TokenBitmaskParams& p) {
  const TokenBitmaskKernels& kernels = token_bitmask_kernels();
  // Rows are cut into pieces, so that a single long one is shared among threads too.
  constexpr int64_t kPieceWords = 1024, kPiece = 32 * kPieceWords, kPiecesPerThread = 2;  // some 5 us
  const int64_t item = static_cast<int64_t>(dtype_size(p.dtype));
  const int64_t pieces = (p.vocab + kPiece - 1) / kPiece;
  parallel_for(p.count * pieces, kPiecesPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t mask = i / pieces, word = i % pieces * kPieceWords, column = 32 * word;
      kernels.mask_row(p.dtype,
                       static_cast<char*>(p.logits) + (p.row_of(mask) * p.row_stride + column) * item,
                       std::min(kPiece, p.vocab - column), p.bitmask + mask * p.mask_stride + word,
                       std::max<int64_t>(p.words - word, 0));
    }
  });
}

}  // namespace inferx::cpu
