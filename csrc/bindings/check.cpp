#include "bindings/check.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "rows.h"

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

bool agrees(const Dim& dim, int64_t size) {
  return dim.sym ? dim.sym->value < 0 || dim.sym->value == size : dim.fixed == size;
}

// True when all of `sizes` agree with `dims`; symbols that had no value then take theirs.
bool bind(std::initializer_list<Dim> dims, const int64_t* sizes) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!agrees(dims.begin()[i], sizes[i])) return false;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (Sym* sym = dims.begin()[i].sym) sym->value = sizes[i];
  }
  return true;
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

// A tensor as windows of memory, evenly spaced: the outermost dimension steps by `stride` elements, all
// others together stay within `width`.
struct Windows {
  int64_t stride, width;
};

// False when the windows of the outermost dimension overlap each other.
bool find_windows(const TensorRef& t, Windows& windows) {
  const Rows dims = make_rows(t.ndim, t.shape, t.strides);
  windows = {0, 1};
  for (int i = 0; i < dims.ndim; ++i) {
    windows.stride = std::max(windows.stride, dims.stride[i]);
    windows.width += (dims.size[i] - 1) * dims.stride[i];
  }
  for (int i = 0; i < dims.ndim; ++i) {
    if (dims.stride[i] != windows.stride) continue;
    windows.width -= (dims.size[i] - 1) * dims.stride[i];
    return windows.width <= windows.stride;
  }
  return false;
}

// A dimension of two tensors that have the same stride in it.
struct CommonDim {
  int64_t stride, a_last, b_last;  // last indices
};

// The dimensions of two tensors by falling stride; false unless strides are the same and each steps over all
// that the smaller ones cover.
bool find_common_dims(const TensorRef& a, const TensorRef& b, CommonDim (&dims)[kMaxDims], int& count) {
  if (a.dtype != b.dtype || a.ndim != b.ndim) return false;
  count = 0;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] <= 1 && b.shape[i] <= 1) continue;
    if (a.strides[i] != b.strides[i]) return false;
    int at = count++;
    for (; at > 0 && dims[at - 1].stride < a.strides[i]; --at) dims[at] = dims[at - 1];
    dims[at] = {a.strides[i], a.shape[i] - 1, b.shape[i] - 1};
  }
  int64_t covered = 1;
  for (int i = count - 1; i >= 0; --i) {
    if (dims[i].stride < covered) return false;
    covered += std::max(dims[i].a_last, dims[i].b_last) * dims[i].stride;
  }
  return true;
}

// Whether an element of b, which starts `shift` elements behind a, is one of a's.  The indices differ by one
// of at most two numbers in each dimension, because the smaller ones reach less far than its stride.
bool meet(const CommonDim* dims, int count, int64_t shift) {
  if (count == 0) return shift == 0;
  const int64_t near = shift / dims->stride;
  for (int64_t steps = near - 1; steps <= near + 1; ++steps) {
    if (steps > dims->a_last || steps < -dims->b_last) continue;
    const int64_t rest = shift - steps * dims->stride;
    if (std::abs(rest) < dims->stride && meet(dims + 1, count - 1, rest)) return true;
  }
  return false;
}

// True when it is certain that no element is shared.
bool disjoint(const TensorRef& a, const TensorRef& b) {
  if (a.numel() == 0 || b.numel() == 0) return true;
  const auto [a_begin, a_end] = byte_range(a);
  const auto [b_begin, b_end] = byte_range(b);
  if (a_end <= b_begin || b_end <= a_begin) return true;
  // Views of one layout, such as the keys and the values of an interleaved cache.
  const int64_t bytes = b.ptr<char>() - a.ptr<char>(), element = static_cast<int64_t>(dtype_size(a.dtype));
  CommonDim dims[kMaxDims];
  int count;
  if (bytes % element == 0 && find_common_dims(a, b, dims, count)) return !meet(dims, count, bytes / element);
  // Two column ranges of one matrix (as q and k in a fused qkv) interleave without sharing an element.
  Windows aw, bw;
  if (a.dtype != b.dtype || !find_windows(a, aw) || !find_windows(b, bw) || aw.stride != bw.stride)
    return false;
  const int64_t item = static_cast<int64_t>(dtype_size(a.dtype)), period = aw.stride * item;
  const int64_t shift = ((b.ptr<char>() - a.ptr<char>()) % period + period) % period;
  return shift >= aw.width * item && shift + bw.width * item <= period;
}

bool same_view(const TensorRef& a, const TensorRef& b) {
  return a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim &&
         std::equal(a.shape, a.shape + a.ndim, b.shape) &&
         std::equal(a.strides, a.strides + a.ndim, b.strides);
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
  if (t_.ndim != static_cast<int32_t>(dims.size()) || !bind(dims, t_.shape)) {
    expected("shape " + expected_shape(dims), shape_string(t_));
  }
  return *this;
}

const Arg& Arg::same_shape(const char* other_name, const TensorRef& other) const {
  if (t_.ndim == other.ndim && std::equal(t_.shape, t_.shape + t_.ndim, other.shape)) return *this;
  expected("shape " + shape_string(other) + " as " + other_name, shape_string(t_));
}

const Arg& Arg::last_dim(Dim dim) const {
  min_ndim(1);
  if (!bind({dim}, &t_.shape[t_.ndim - 1]))
    expected("last dimension of shape " + expected_shape({dim}), shape_string(t_));
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
    if (t_.shape[i] <= 1) continue;
    int at = count++;
    for (; at > 0 && t_.strides[order[at - 1]] > t_.strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
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

void check_disjoint(const char* op, const char* out_name, const TensorRef& out, const char* in_name,
                    const TensorRef& in) {
  if (disjoint(out, in)) return;
  fail_expected(op, out_name, std::string("memory apart from that of ") + in_name, "an overlap");
}

void check_disjoint(const char* op, const char* out_name, const TensorRef& out,
                    std::initializer_list<NamedTensor> inputs) {
  for (const NamedTensor& input : inputs) {
    if (input.tensor) check_disjoint(op, out_name, out, input.name, *input.tensor);
  }
}

void check_all_disjoint(const char* op, std::vector<NamedTensor> outputs) {
  std::sort(outputs.begin(), outputs.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return a.tensor->ptr<char>() < b.tensor->ptr<char>();
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    const char* end = byte_range(*outputs[i].tensor).second;
    for (size_t k = i + 1; k < outputs.size() && outputs[k].tensor->ptr<char>() < end; ++k) {
      check_disjoint(op, outputs[k].name, *outputs[k].tensor, outputs[i].name, *outputs[i].tensor);
    }
  }
}

void check_same_or_disjoint(const char* op, const char* out_name, const TensorRef& out, const char* in_name,
                            const TensorRef& in) {
  if (disjoint(out, in) || same_view(out, in)) return;
  fail_expected(op, out_name, std::string("the same view as ") + in_name + " or memory apart from it",
                "a partial overlap");
}

bool load_optional(const char* op, const char* name, const pybind11::object& object, TensorRef& tensor) {
  if (object.is_none()) return false;
  if (!load_tensor(object.ptr(), tensor)) {
    throw pybind11::type_error(std::string(op) + ": " + name + ": expected a torch.Tensor or None, got " +
                               std::string(pybind11::str(pybind11::type::of(object))));
  }
  return true;
}

}  // namespace inferx
