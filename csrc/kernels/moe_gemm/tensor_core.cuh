// The experts' matrix products in 16 bits, on mma.sync.
//
// Weights are the A operand of m16n8k16 and tokens its 8 columns, so tiles of 8 to 128 tokens run the same
// instruction in the same order over K: an element is one chain of products, whatever the tile and whoever
// else is in it, and a token's bits do not depend on the batch.  Nor is K ever split.
//
// Both operands are contiguous along K and come by cp.async into a ring of stages, swizzled so that the eight
// rows that ldmatrix reads at once lie in different banks.  With an activation, gates and ups alternate in
// the tile by eights: row g of an A fragment is a gate, row g + 8 the up of the same column.
#pragma once
#include "kernels/moe_gemm/epilogue.cuh"
#include "kernels/moe_gemm/tile.cuh"

namespace inferx::cuda::moe_gemm {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kDepth = 64;  // elements of K a stage: rows of 128 bytes, all banks
constexpr int kRowBytes = kDepth * 2, kChunks = kRowBytes / 16;
constexpr int kRowsAtOnce = kThreads / kChunks;  // that the CTA copies side by side
static_assert(kRowsAtOnce == 16, "a thread copies rows that are all gates or all ups");

template <int kTokensOfTile>
struct Shape {
  static constexpr int kTokens = kTokensOfTile;
  // Few tokens are bound by reading the weights: small tiles of them make enough CTAs even for one token, and
  // many stages enough bytes in flight.  Many are bound by the tensor cores and by what ldmatrix reads for
  // them, least with square tiles of a warp.
  static constexpr int kRows = kTokens <= 16 ? 64 : 128;
  static constexpr int kStages = kTokens <= 16 ? 6 : kTokens <= 32 ? 4 : 3;
  static constexpr int kWarpsAcross = kTokens <= 32 ? 1 : 2;  // over the tokens
  static constexpr int kWarpsDown = kWarps / kWarpsAcross;
  static constexpr int kWarpRows = kRows / kWarpsDown, kWarpTokens = kTokens / kWarpsAcross;
  static constexpr int kBands = kWarpRows / 16, kOctets = kWarpTokens / 8;
  // So many CTAs of an SM the registers have to suffice for.
  static constexpr int kCtas = kTokens <= 32 ? 4 : kTokens <= 64 ? 3 : 2;
  static constexpr int kStageBytes = (kRows + kTokens) * kRowBytes;
  // The ring's place is taken by the sums at the end, token by token.  Padding: eight rows of four tokens go
  // to 32 banks.
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kTokens * kSumStride * 4 <= kBytes, "sums must fit the ring");
};

// Where 16 bytes of a row of a stage lie.
SIMT_DEV int place_of(int row, int chunk) { return row * kRowBytes + ((chunk ^ row % kChunks) << 4); }

SIMT_DEV void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                       __nv_bfloat16 SIMT_ATP) {
  mma_bf16(d, a, b0, b1 SIMT_PASS);
}
SIMT_DEV void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half SIMT_ATP) {
  mma_f16(d, a, b0, b1 SIMT_PASS);
}
SIMT_DEV void multiply_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                           __nv_bfloat16 SIMT_ATP) {
  mma_bf16_n16(d0, d1, a, b SIMT_PASS);
}
SIMT_DEV void multiply_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                           __half SIMT_ATP) {
  mma_f16_n16(d0, d1, a, b SIMT_PASS);
}

// A thread's part in copying: one chunk of every sixteenth row of weights and tokens.
template <class T, class S, bool kGated>
class Copies {
 public:
  SIMT_DEV Copies(const MoeGemmParams& p, int expert, int first_column)
      : row_(threadIdx.x / kChunks), chunk_(threadIdx.x % kChunks) {
    const int column = first_column + (kGated ? row_ % 8 : row_);
    left_ = static_cast<int>(p.columns) - column;
    weights_ = static_cast<const T*>(p.weight) + expert * p.weight_stride_expert +
               (kGated && row_ >= 8 ? column + p.columns : column) * p.weight_stride_row;
    step_ = kColumnStep * p.weight_stride_row;
  }

  // Starts the copies of a stage and commits them; zeros beyond the last row, the last token and K.
  SIMT_DEV void start(const MoeGemmParams& p, const TokenTile<S::kTokens>& tile, unsigned char* stage,
                      int number) const {
    const int at = number * kDepth + chunk_ * 8;
    const bool inside = at < p.k;
    const int place = place_of(row_, chunk_);  // the same in every sixteenth row
#pragma unroll
    for (int i = 0; i < S::kRows / kRowsAtOnce; ++i) {
      const bool there = inside && i * kColumnStep < left_;
      cp_async<16>(stage + place + i * kRowsAtOnce * kRowBytes, there ? weights_ + i * step_ + at : weights_,
                   there ? 16 : 0);
    }
    const T* input = static_cast<const T*>(p.input);
    unsigned char* tokens = stage + S::kRows * kRowBytes;
#pragma unroll
    for (int i = 0; i < (S::kTokens + kRowsAtOnce - 1) / kRowsAtOnce; ++i) {
      const int token = row_ + i * kRowsAtOnce;
      if (S::kTokens % kRowsAtOnce != 0 && token >= S::kTokens) continue;
      const int64_t from = tile.input_at[token];
      const bool there = inside && from >= 0;
      cp_async<16>(tokens + place + i * kRowsAtOnce * kRowBytes, there ? input + from + at : input,
                   there ? 16 : 0);
    }
    cp_async_commit();
  }

 private:
  static constexpr int kColumnStep = kGated ? 8 : 16;
  int row_, chunk_, left_;
  const T* weights_;
  int64_t step_;
};

template <class S>
using Sums = float[S::kBands][S::kOctets][4];

// sums += the warp's rows of the stage times its tokens.
template <class T, class S>
SIMT_DEV void multiply_stage(Sums<S>& sums, const unsigned char* stage, int first_row, int first_token) {
  const int lane = lane_id();
  const unsigned char* tokens = stage + S::kRows * kRowBytes;
  uint32_t pair[4];  // B fragments of 8 tokens, for two steps of K
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t a[S::kBands][4];
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
      ldmatrix_x4(a[m], stage + place_of(first_row + m * 16 + lane % 16, 2 * k + lane / 16));
    }
    if constexpr (S::kOctets == 1) {
      if (k % 2 == 0) ldmatrix_x4(pair, tokens + place_of(first_token + lane % 8, 2 * k + lane / 8));
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) {
        multiply(sums[m][0], a[m], pair[k % 2 * 2], pair[k % 2 * 2 + 1], T{});
      }
    } else {
#pragma unroll
      for (int n = 0; n < S::kOctets; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b,
                    tokens + place_of(first_token + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < S::kBands; ++m) multiply_n16(sums[m][n], sums[m][n + 1], a[m], b, T{});
      }
    }
  }
}

// Leaves the warp's sums in shared memory, [kTokens][kRows]; gated: the tile's gates, then its ups.
template <class S, bool kGated>
SIMT_DEV void put_sums(float* shared, const Sums<S>& sums, int first_row, int first_token) {
  const int row = lane_id() / 4, token = first_token + lane_id() % 4 * 2;
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int n = 0; n < S::kOctets; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = kGated ? (first_row + m * 16) / 2 + row + e / 2 * (S::kRows / 2)
                              : first_row + m * 16 + row + e / 2 * 8;
        shared[(token + n * 8 + e % 2) * S::kSumStride + at] = sums[m][n][e];
      }
    }
  }
}

// Results from the sums in shared memory, four columns of a token at a time.
template <class T, class S, bool kGated>
SIMT_DEV void store(const MoeGemmParams& p, const TokenTile<S::kTokens>& tile, int expert, int first_column,
                    const float* shared) {
  constexpr int kColumns = kGated ? S::kRows / 2 : S::kRows, kQuads = kColumns / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < S::kTokens * kQuads; i += kThreads) {
    const int token = i / kQuads, c = i % kQuads * 4, column = first_column + c, pair = tile.pair[token];
    if (pair < 0 || column >= p.columns) continue;
    const float* from = shared + token * S::kSumStride + c;
    float sum[4], up[4] = {};
    const uint4 bits = ld16(from);
    memcpy(sum, &bits, 16);
    if constexpr (kGated) {
      const uint4 up_bits = ld16(from + kColumns);
      memcpy(up, &up_bits, 16);
    }
    T items[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      items[j] = from_float<T>(finish<T, kGated>(p, expert, column + j, sum[j], up[j], tile.scale[token]));
    }
    uint2 packed;
    memcpy(&packed, items, 8);
    st8(static_cast<T*>(p.out) + pair * p.out_stride + column, packed);
  }
}

template <class T, int kTokens, bool kGated>
__global__ void __launch_bounds__(kThreads, Shape<kTokens>::kCtas)
    moe_gemm_kernel(const __grid_constant__ MoeGemmParams p) {
  using S = Shape<kTokens>;
  constexpr int kColumns = kGated ? S::kRows / 2 : S::kRows;
  DYN_SHARED(ring, 128);
  SHARED(TokenTile<kTokens>, tile, );
  const unsigned column_tiles = static_cast<unsigned>((p.columns + kColumns - 1) / kColumns);
  const int index = static_cast<int>(blockIdx.x / column_tiles);
  const int first_column = static_cast<int>(blockIdx.x % column_tiles) * kColumns;
  clear_missing<T, kTokens>(p, index, first_column, first_column + kColumns);
  const int expert = find_tile(p, index, tile);
  if (expert < 0) return;  // the whole CTA
  __syncthreads();

  const Copies<T, S, kGated> copies(p, expert, first_column);
  const int stages = static_cast<int>((p.k + kDepth - 1) / kDepth);
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s) {
    if (s < stages) {
      copies.start(p, tile, ring + s * S::kStageBytes, s);
    } else {
      cp_async_commit();
    }
  }
  Sums<S> sums;
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int n = 0; n < S::kOctets; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[m][n][e] = 0;
    }
  }
  const int warp = threadIdx.x / 32, first_row = warp % S::kWarpsDown * S::kWarpRows,
            first_token = warp / S::kWarpsDown * S::kWarpTokens;
  int use = 0, fill = S::kStages - 1;  // places in the ring
#pragma unroll 1
  for (int s = 0; s < stages; ++s) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // the stage is there, and the one before has been used
    if (s + S::kStages - 1 < stages) {
      copies.start(p, tile, ring + fill * S::kStageBytes, s + S::kStages - 1);
    } else {
      cp_async_commit();
    }
    multiply_stage<T, S>(sums, ring + use * S::kStageBytes, first_row, first_token);
    use = use + 1 == S::kStages ? 0 : use + 1;
    fill = fill + 1 == S::kStages ? 0 : fill + 1;
  }
  cp_async_wait<0>();
  __syncthreads();  // the last stage has been used
  float* shared = reinterpret_cast<float*>(ring);
  put_sums<S, kGated>(shared, sums, first_row, first_token);
  __syncthreads();
  store<T, S, kGated>(p, tile, expert, first_column, shared);
}

// Instantiated in tokens_<kTokens>.cu, so that they compile side by side.
template <int kTokens>
Error launch_tokens(const MoeGemmParams& p, void* stream) {
  using S = Shape<kTokens>;
  const auto go = [&](auto kernel, int columns) {
    const int64_t grid = grid_size(p, columns);
    if (grid > INT32_MAX) return kInvalidValue;
    return launch(kernel, dim3(static_cast<unsigned>(grid)), dim3(kThreads), S::kBytes, stream, p);
  };
  const auto typed = [&](auto element) {
    using T = decltype(element);
    return p.activation == MoeActivation::none ? go(moe_gemm_kernel<T, kTokens, false>, S::kRows)
                                               : go(moe_gemm_kernel<T, kTokens, true>, S::kRows / 2);
  };
  if (p.dtype == DType::bf16) return typed(__nv_bfloat16{});
  return p.dtype == DType::f16 ? typed(__half{}) : kInvalidValue;
}
extern template Error launch_tokens<8>(const MoeGemmParams&, void*);
extern template Error launch_tokens<16>(const MoeGemmParams&, void*);
extern template Error launch_tokens<32>(const MoeGemmParams&, void*);
extern template Error launch_tokens<64>(const MoeGemmParams&, void*);
extern template Error launch_tokens<128>(const MoeGemmParams&, void*);

}  // namespace inferx::cuda::moe_gemm
