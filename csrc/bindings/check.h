// Argument checks.  A failed one throws ValueError that names the op, the argument, what was expected and
// what came, for example "rms_norm: weight: expected shape [H=576], got [575]".
//
//   Sym T{"T"}, H{"H"};
//   Arg("rms_norm", "x", x).dtype({DType::f32, DType::f16}).shape({T, H}).last_dim_contiguous().on_cpu();
//   Arg("rms_norm", "weight", weight).same_dtype("x", x).shape({H}).same_device("x", x);
#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "bindings/tensor_ref.h"

namespace inferx {

// A size that has a name: the first argument to carry it sets it, later ones must agree.
struct Sym {
  const char* name;
  int64_t value = -1;
};

// One entry of an expected shape: a fixed number or a Sym.
struct Dim {
  Sym* sym = nullptr;
  int64_t fixed = -1;
  Dim(Sym& symbol) : sym(&symbol) {}    // NOLINT: implicit, so that a shape reads {T, H}
  Dim(int64_t value) : fixed(value) {}  // NOLINT
  Dim(int value) : fixed(value) {}      // NOLINT
};

// Throws ValueError "op: argument: message".
[[noreturn]] void fail_argument(const char* op, const char* argument, const std::string& message);
[[noreturn]] void fail_expected(const char* op, const char* argument, const std::string& expected,
                                const std::string& given);

std::string shape_string(const TensorRef& tensor);   // "[2, 3]"
std::string device_string(const TensorRef& tensor);  // "cpu", "cuda:0"

// Loads an optional tensor; false where it is None.
bool load_optional(const char* op, const char* name, const pybind11::object& object, TensorRef& tensor);

class Arg {
 public:
  Arg(const char* op, const char* name, const TensorRef& tensor) : op_(op), name_(name), t_(tensor) {}

  const Arg& dtype(std::initializer_list<DType> allowed) const;
  const Arg& same_dtype(const char* other_name, const TensorRef& other) const;
  const Arg& ndim(int expected) const;
  const Arg& min_ndim(int expected) const;
  const Arg& shape(std::initializer_list<Dim> expected) const;
  const Arg& same_shape(const char* other_name, const TensorRef& other) const;
  const Arg& last_dim(Dim expected) const;
  const Arg& last_dim_contiguous() const;
  const Arg& contiguous() const;
  // No two elements share memory (as in an expanded tensor): wanted of everything that is written.
  const Arg& not_self_overlapping() const;
  const Arg& on_cpu() const;
  const Arg& same_device(const char* other_name, const TensorRef& other) const;

  [[noreturn]] void expected(const std::string& what, const std::string& given) const {
    fail_expected(op_, name_, what, given);
  }

 private:
  const char* op_;
  const char* name_;
  const TensorRef& t_;
};

// Memory that is written may share nothing with another argument...
void check_disjoint(const char* op, const char* out_name, const TensorRef& out, const char* in_name,
                    const TensorRef& in);
// ... with none of several (null: not given) ...
struct NamedTensor {
  const char* name;
  const TensorRef* tensor;
};
void check_disjoint(const char* op, const char* out_name, const TensorRef& out,
                    std::initializer_list<NamedTensor> inputs);
// ... nor with each other, where several are written ...
void check_all_disjoint(const char* op, std::vector<NamedTensor> outputs);
// ... or also be the very same view (same start, dtype, shape and strides), for ops that work in place.
void check_same_or_disjoint(const char* op, const char* out_name, const TensorRef& out, const char* in_name,
                            const TensorRef& in);

}  // namespace inferx
