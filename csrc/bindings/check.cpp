#include "bindings/check.h"

#include <algorithm>

namespace inferx {
namespace {

std::string join(const int64_t* values, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string expected_shape(std::initializer_list<Dim> dims) {
  std::string text = "[";
  for (const Dim& dim : dims) {
    if (text.size() > 1) text += ", ";
    if (!dim.sym) {
      text += std::to_string(dim.fixed);
    } else {
      text += dim.sym->name;
      if (dim.sym->value >= 0) text += "=" + std::to_string(dim.sym->value);
    }
  }
  return text + "]";
}

// True when `size` agrees with `dim`; an unset symbol takes it.
bool bind(const Dim& dim, int64_t size) {
  if (!dim.sym) return size == dim.fixed;
  if (dim.sym->value < 0) dim.sym->value = size;
  return dim.sym->value == size;
}

// First and one-past-last byte that a tensor touches.
std::pair<const char*, const char*> byte_range(const TensorRef& t) {
  int64_t low = 0, high = 0;
  for (int i = 0; i < t.ndim; ++i) {
    const int64_t extent = (t.shape[i] - 1) * t.strides[i];
    (extent < 0 ? low : high) += extent;
  }
  const int64_t size = static_cast<int64_t>(dtype_size(t.dtype));
  const char* base = t.ptr<const char>();
  return {base + low * size, base + (high + 1) * size};
}

// The stride, in elements, of the one dimension that rows of `t` advance by; false when there is none.
bool single_row_stride(const TensorRef& t, int64_t& stride) {
  int64_t covered = 1;
  stride = 0;
  for (int i = t.ndim - 2; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (stride == 0) {
      stride = t.strides[i];
    } else if (t.strides[i] != stride * covered) {
      return false;
    }
    covered *= t.shape[i];
  }
  return stride > 0;
}

}  // namespace

void fail_argument(const char* op, const char* argument, const std::string& message) {
  throw pybind11::value_error(std::string(op) + ": " + argument + ": " + message);
}

void fail_expected(const char* op, const char* argument, const std::string& expected,
                   const std::string& given) {
  fail_argument(op, argument, "expected " + expected + ", got " + given);
}

std::string shape_string(const TensorRef& t) { return join(t.shape, t.ndim); }

std::string device_string(const TensorRef& t) {
  if (t.is_cpu()) return "cpu";
  if (t.is_cuda()) return "cuda:" + std::to_string(t.device_id);
  return "a device inferx does not know";
}

const Arg& Arg::dtype(std::initializer_list<DType> allowed) const {
  if (std::find(allowed.begin(), allowed.end(), t_.dtype) != allowed.end()) return *this;
  std::string names;
  for (DType dtype : allowed) names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  expected("dtype " + names, dtype_name(t_.dtype));
}

const Arg& Arg::same_dtype(const char* other_name, const TensorRef& other) const {
  if (t_.dtype == other.dtype) return *this;
  expected("dtype " + std::string(dtype_name(other.dtype)) + " as " + other_name, dtype_name(t_.dtype));
}

const Arg& Arg::ndim(int wanted) const {
  if (t_.ndim == wanted) return *this;
  expected(std::to_string(wanted) + " dimensions", "shape " + shape_string(t_));
}

const Arg& Arg::min_ndim(int wanted) const {
  if (t_.ndim >= wanted) return *this;
  expected("at least " + std::to_string(wanted) + " dimension" + (wanted == 1 ? "" : "s"),
           "shape " + shape_string(t_));
}

const Arg& Arg::shape(std::initializer_list<Dim> dims) const {
  bool agrees = t_.ndim == static_cast<int32_t>(dims.size());
  for (int i = 0; agrees && i < t_.ndim; ++i) agrees = bind(dims.begin()[i], t_.shape[i]);
  if (!agrees) expected("shape " + expected_shape(dims), shape_string(t_));
  return *this;
}

const Arg& Arg::same_shape(const char* other_name, const TensorRef& other) const {
  if (t_.ndim == other.ndim && std::equal(t_.shape, t_.shape + t_.ndim, other.shape)) return *this;
  expected("shape " + shape_string(other) + " as " + other_name, shape_string(t_));
}

const Arg& Arg::last_dim(Dim dim) const {
  min_ndim(1);
  if (!bind(dim, t_.size(-1))) expected("last dimension of shape " + expected_shape({dim}), shape_string(t_));
  return *this;
}

const Arg& Arg::last_dim_contiguous() const {
  if (t_.ndim == 0 || t_.size(-1) <= 1 || t_.stride(-1) == 1 || t_.numel() == 0) return *this;
  expected("a contiguous last dimension (stride 1)", "strides " + join(t_.strides, t_.ndim));
}

const Arg& Arg::contiguous() const {
  if (t_.is_contiguous() || t_.numel() == 0) return *this;
  expected("a contiguous tensor", "shape " + shape_string(t_) + " with strides " + join(t_.strides, t_.ndim));
}

const Arg& Arg::not_self_overlapping() const {
  // Sufficient for the views that slicing and transposing make: sorted by stride, each dimension steps over
  // all that the smaller ones cover.
  if (t_.numel() == 0) return *this;
  int order[kMaxDims];
  int count = 0;
  for (int i = 0; i < t_.ndim; ++i) {
    if (t_.shape[i] > 1) order[count++] = i;
  }
  std::sort(order, order + count, [&](int a, int b) { return t_.strides[a] < t_.strides[b]; });
  int64_t covered = 1;
  for (int i = 0; i < count; ++i) {
    if (t_.strides[order[i]] < covered) {
      expected("memory of its own for every element (it is written to)",
               "shape " + shape_string(t_) + " with strides " + join(t_.strides, t_.ndim));
    }
    covered += (t_.shape[order[i]] - 1) * t_.strides[order[i]];
  }
  return *this;
}

const Arg& Arg::on_cpu() const {
  if (t_.is_cpu()) return *this;
  expected("a CPU tensor (this op has no CUDA kernel in this build)", device_string(t_));
}

const Arg& Arg::same_device(const char* other_name, const TensorRef& other) const {
  if (t_.device_type == other.device_type && t_.device_id == other.device_id) return *this;
  expected("device " + device_string(other) + " as " + other_name, device_string(t_));
}

void check_same_or_disjoint(const char* op, const char* out_name, const TensorRef& out, const char* in_name,
                            const TensorRef& in) {
  if (out.numel() == 0 || in.numel() == 0) return;
  const auto [out_begin, out_end] = byte_range(out);
  const auto [in_begin, in_end] = byte_range(in);
  if (out_end <= in_begin || in_end <= out_begin) return;
  if (out.data == in.data && out.dtype == in.dtype && out.ndim == in.ndim &&
      std::equal(out.shape, out.shape + out.ndim, in.shape) &&
      std::equal(out.strides, out.strides + out.ndim, in.strides)) {
    return;
  }
  // Two column ranges of one matrix (as q and k in a fused qkv) interleave without sharing an element.
  int64_t out_stride, in_stride;
  if (out.dtype == in.dtype && single_row_stride(out, out_stride) && single_row_stride(in, in_stride) &&
      out_stride == in_stride && out.size(-1) <= out_stride && in.size(-1) <= in_stride) {
    const int64_t row_bytes = out_stride * static_cast<int64_t>(dtype_size(out.dtype));
    const int64_t distance = (in.ptr<char>() - out.ptr<char>()) % row_bytes;
    const int64_t shift = (distance + row_bytes) % row_bytes;
    const int64_t size = static_cast<int64_t>(dtype_size(out.dtype));
    if (shift >= out.size(-1) * size && shift + in.size(-1) * size <= row_bytes) return;
  }
  fail_expected(op, out_name, std::string("memory that is ") + in_name + "'s own view or apart from it",
                "a partial overlap");
}

}  // namespace inferx
