#include "simt/host/fences.h"

#include <algorithm>
#include <utility>

namespace simt::host {

Fence::Fence(const View& view)
    : name_(view.name),
      shape_(view.shape, view.shape + view.ndim),
      begin_(reinterpret_cast<uintptr_t>(view.data)),
      end_(begin_),
      writable_(view.writable) {
  for (int64_t size : shape_)
    if (size == 0) return;
  std::vector<std::pair<uint64_t, uint64_t>> dims;  // stride, size
  for (int i = 0; i < view.ndim; ++i) {
    // A stride of 0 repeats the same elements.
    if (view.shape[i] > 1 && view.strides[i] != 0)
      dims.emplace_back(static_cast<uint64_t>(view.strides[i]) * view.item_bytes,
                        static_cast<uint64_t>(view.shape[i]));
  }
  std::sort(dims.begin(), dims.end());
  run_ = view.item_bytes;
  size_t i = 0;
  for (; i < dims.size() && dims[i].first <= run_; ++i) run_ += dims[i].first * (dims[i].second - 1);
  uint64_t inner = run_;
  for (; i < dims.size(); ++i) {
    dims_.push_back({dims[i].first, dims[i].second, inner});
    inner += dims[i].first * (dims[i].second - 1);
  }
  std::reverse(dims_.begin(), dims_.end());
  end_ = begin_ + inner;
}

bool Fence::find(uintptr_t p, size_t bytes, uintptr_t* begin, uintptr_t* end) const {
  if (p < begin_ || p + bytes > end_) return false;
  uint64_t run = 0;
  if (!find_from(0, p - begin_, bytes, &run)) return false;
  *begin = begin_ + run;
  *end = *begin + run_;
  return true;
}

bool Fence::find_from(size_t dim, uint64_t offset, size_t bytes, uint64_t* run_offset) const {
  if (dim == dims_.size()) return offset + bytes <= run_;
  // Mostly one index is possible; more where the dimensions interleave.
  const Dim& d = dims_[dim];
  for (uint64_t index = std::min(offset / d.stride, d.size - 1);; --index) {
    const uint64_t rest = offset - index * d.stride;
    if (rest + bytes > d.inner) return false;
    if (find_from(dim + 1, rest, bytes, run_offset)) {
      *run_offset += index * d.stride;
      return true;
    }
    if (index == 0) return false;
  }
}

std::string Fence::describe() const {
  std::string text = "'" + name_ + "' [";
  for (size_t i = 0; i < shape_.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape_[i]);
  return text + "]";
}

std::string Fence::explain(uintptr_t p, size_t bytes) const {
  if (p < begin_) return std::to_string(begin_ - p) + " bytes before the start of " + describe();
  if (p + bytes > end_) return std::to_string(p + bytes - end_) + " bytes past the end of " + describe();
  uint64_t offset = p - begin_;
  std::string row;
  for (const Dim& d : dims_) {
    const uint64_t index = std::min(offset / d.stride, d.size - 1);
    offset -= index * d.stride;
    row += (row.empty() ? "" : ", ") + std::to_string(index);
  }
  return std::to_string(offset + bytes - run_) + " bytes past the end of row (" + row + ") of " + describe() +
         ", between its elements";
}

}  // namespace simt::host
