#include "bindings/packed_weight.h"

namespace inferx {

cpu::PackedWeight describe_weight(const char* op, const std::string& dtype, int64_t n, int64_t k) {
  cpu::PackedWeight weight;
  if (!cpu::find_format(dtype.c_str(), weight.format)) {
    std::string known;
    for (const auto& traits : cpu::kFormatTraits)
      known += (known.empty() ? "" : ", ") + std::string(traits.name);
    fail_expected(op, "dtype", "one of " + known, "'" + dtype + "'");
  }
  const std::string given = "[" + std::to_string(n) + ", " + std::to_string(k) + "]";
  constexpr int64_t most = int64_t{1} << 31;  // n * k times four bytes stays below 2^64 with these
  if (n < 1 || k < 1 || n > most || k > most || n * k > most * most / 64) {
    fail_expected(op, "shape", "[N, K] with both at least 1 and of a size that can exist", given);
  }
  const int block = cpu::traits_of(weight.format).block;
  if (!cpu::is_float(weight.format) && k % block != 0) {
    fail_expected(op, "shape",
                  "[N, K] with K a multiple of " + dtype + "'s block of " + std::to_string(block), given);
  }
  weight.n = n;
  weight.k = k;
  return weight;
}

namespace {

DType element_type(cpu::WeightFormat format) {
  switch (format) {
    case cpu::WeightFormat::f32:
      return DType::f32;
    case cpu::WeightFormat::f16:
      return DType::f16;
    case cpu::WeightFormat::bf16:
      return DType::bf16;
    default:
      return DType::u8;
  }
}

}  // namespace

int64_t check_source(const char* op, const TensorRef& data, const cpu::PackedWeight& weight) {
  const auto& traits = cpu::traits_of(weight.format);
  const int64_t row = cpu::is_float(weight.format) ? weight.k : weight.k / traits.block * traits.source_bytes;
  Arg(op, "data", data).dtype({element_type(weight.format)}).shape({weight.n, row});
  Arg(op, "data", data).last_dim_contiguous().on_cpu();
  return data.stride(0) * static_cast<int64_t>(dtype_size(data.dtype));
}

void load_buffer(const char* op, const pybind11::object& buffer, int64_t nbytes, TensorRef& memory) {
  if (!load_tensor(buffer.ptr(), memory)) fail_argument(op, "buffer", "expected a tensor");
  Arg(op, "buffer", memory).dtype({DType::u8}).shape({nbytes}).contiguous().on_cpu();
  if (reinterpret_cast<uintptr_t>(memory.data) % 64 != 0)
    fail_argument(op, "buffer", "expected 64-byte alignment");
}

}  // namespace inferx
