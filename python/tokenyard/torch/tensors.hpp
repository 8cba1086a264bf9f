/// Conversion of torch's tensors, types and reductions to the core's.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "core_table.hpp"

namespace tokenyard::torch_backend {

/// Returns the core's type; nothing for types that it does not reduce.
inline std::optional<core::Type> type_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return core::Type::boolean;
    case at::kByte:
      return core::Type::uint8;
    case at::kChar:
      return core::Type::int8;
    case at::kUInt16:
      return core::Type::uint16;
    case at::kShort:
      return core::Type::int16;
    case at::kUInt32:
      return core::Type::uint32;
    case at::kInt:
      return core::Type::int32;
    case at::kUInt64:
      return core::Type::uint64;
    case at::kLong:
      return core::Type::int64;
    case at::kHalf:
      return core::Type::float16;
    case at::kBFloat16:
      return core::Type::bfloat16;
    case at::kFloat:
      return core::Type::float32;
    case at::kDouble:
      return core::Type::float64;
    case at::kComplexFloat:
      return core::Type::complex64;
    case at::kComplexDouble:
      return core::Type::complex128;
    default:
      return std::nullopt;
  }
}

/// Returns the core's reduction.
inline core::Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return core::Reduction::sum;
    case c10d::ReduceOp::AVG:
      return core::Reduction::average;
    case c10d::ReduceOp::PRODUCT:
      return core::Reduction::product;
    case c10d::ReduceOp::MIN:
      return core::Reduction::min;
    case c10d::ReduceOp::MAX:
      return core::Reduction::max;
    case c10d::ReduceOp::BAND:
      return core::Reduction::bit_and;
    case c10d::ReduceOp::BOR:
      return core::Reduction::bit_or;
    case c10d::ReduceOp::BXOR:
      return core::Reduction::bit_xor;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "backend tokenyard has no PREMUL_SUM");
  }
}

/// Throws InvalidArgument for a tensor whose elements the core cannot access.
inline void check(const Argument& argument, const at::Tensor& tensor,
                  c10::Device device = c10::kCPU) {
  if (!tensor.defined()) refuse(argument, "a tensor", "none");
  if (tensor.device() != device)
    refuse(argument, device.is_cpu() ? "a tensor on the CPU" : c10::str("a tensor on ", device),
           c10::str("one on ", tensor.device()));
  if (tensor.layout() != at::kStrided || tensor.is_nested())
    refuse(argument, "a dense tensor",
           tensor.is_nested() ? "a nested one" : c10::str("one of layout ", tensor.layout()));
  if (tensor.is_quantized())
    refuse(argument, "a tensor of plain numbers, such as its int_repr() and its scales",
           c10::str("one of ", tensor.scalar_type()));
}

/// Returns whether certainly no two elements share memory.
inline bool elements_do_not_overlap(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return true;
  std::vector<std::pair<int64_t, int64_t>>
      dimensions;  // Stride and size of dimensions longer than 1.
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 0) return true;
    if (tensor.size(dim) > 1) dimensions.emplace_back(tensor.stride(dim), tensor.size(dim));
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reached = 0;  // Largest offset within the dimensions so far.
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reached) return false;
    reached += stride * (size - 1);
  }
  return true;
}

/// Throws InvalidArgument unless elements certainly have memory of their own.
inline void check_writable(const Argument& argument, const at::Tensor& tensor) {
  if (!elements_do_not_overlap(tensor))
    refuse(argument, "a tensor to write whose elements do not share memory",
           c10::str("one of sizes ", tensor.sizes(), " and strides ", tensor.strides()));
}

/// Throws InvalidArgument if two tensors of a list share memory. Does not reject interleaved
/// tensors, which may lie in each other's gaps.
inline void check_no_overlap(const char* argument, const std::vector<at::Tensor>& tensors) {
  struct Place {
    const std::byte* begin;
    const std::byte* end;  ///< end of memory without gaps: at least the first element
    size_t index;
  };
  std::vector<Place> places;
  for (size_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    if (tensor.numel() == 0) continue;
    const auto* begin = static_cast<const std::byte*>(tensor.data_ptr());
    const bool dense = tensor.is_non_overlapping_and_dense();
    places.push_back({begin, begin + (dense ? tensor.nbytes() : tensor.itemsize()), index});
  }
  std::sort(places.begin(), places.end(),
            [](const Place& one, const Place& other) { return one.begin < other.begin; });
  for (size_t next = 1; next < places.size(); ++next) {
    const Place &before = places[next - 1], &place = places[next];
    if (place.begin >= before.end) continue;
    const auto [first, second] = std::minmax(before.index, place.index);
    refuse({argument, second}, "memory of its own",
           "memory that it shares with " + Argument{argument, first}.text());
  }
}

/// Describes a tensor by what the operation does with its elements.
using Describe = core::Array (*)(const Argument&, const at::Tensor&);

/// Describes a contiguous tensor, like all below, whose elements are reduced.
inline core::Array reduced(const Argument& argument, const at::Tensor& tensor) {
  const std::optional<core::Type> type = type_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(type, argument.text(), ": backend tokenyard does not reduce ",
                   tensor.scalar_type());
  return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *type};
}

/// Describes a tensor whose elements are only moved, of any type.
inline core::Array moved(const Argument&, const at::Tensor& tensor) {
  if (const std::optional<core::Type> type = type_of(tensor.scalar_type()))
    return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *type};
  return {tensor.data_ptr(), tensor.nbytes(), core::Type::uint8};
}

/// Cuts an array into consecutive parts of the given numbers of elements.
inline std::vector<core::Array> cut(const core::Array& whole, size_t item_bytes,
                                    const std::vector<uint64_t>& elements) {
  std::vector<core::Array> parts;
  parts.reserve(elements.size());
  auto* data = static_cast<std::byte*>(whole.data);
  for (const uint64_t count : elements) {
    parts.push_back({data, count, whole.type});
    data += count * item_bytes;
  }
  return parts;
}

inline size_t item_bytes(const at::Tensor& tensor, const core::Array& array) {
  return array.elements == 0 ? 0 : tensor.nbytes() / array.elements;
}

/// Cuts a tensor into equal parts, one per rank. `whole`: the tensor's array.
inline std::vector<core::Array> cut_equally(const Argument& argument, const at::Tensor& tensor,
                                            const core::Array& whole, int ranks) {
  if (tensor.numel() % ranks != 0)
    refuse(argument, c10::str("a number of elements that ", ranks, " ranks divide equally"),
           c10::str(tensor.numel()));
  return cut(whole, item_bytes(tensor, whole),
             std::vector<uint64_t>(ranks, whole.elements / ranks));
}

/// Cuts a tensor into parts as long as `part`, however many: the core compares their number with
/// the ranks, and names those that are lost. If the lengths do not fit, cuts one part per rank.
inline std::vector<core::Array> cut_into_parts(const Argument& argument, const at::Tensor& tensor,
                                               const core::Array& whole, const at::Tensor& part,
                                               int ranks) {
  const int64_t all = tensor.numel(), one = part.numel();
  const bool fit = all > 0 && one > 0 && all % one == 0;
  return cut_equally(argument, tensor, whole, fit ? static_cast<int>(all / one) : ranks);
}

/// Cuts a tensor along its first dimension into parts of `splits` rows; equal ones if it is empty.
inline std::vector<core::Array> cut_rows(const Argument& argument, const at::Tensor& tensor,
                                         const core::Array& whole, const char* splits_argument,
                                         const std::vector<int64_t>& splits, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    if (rows % ranks != 0)
      refuse(argument, c10::str("a first dimension that ", ranks, " ranks divide equally"),
             c10::str(rows));
    return cut_equally(argument, tensor, whole, ranks);
  }
  if (splits.size() != static_cast<size_t>(ranks))
    refuse({splits_argument}, c10::str(ranks, " numbers of rows"), c10::str(splits.size()));
  const uint64_t row = rows == 0 ? 0 : whole.elements / rows;
  std::vector<uint64_t> elements;
  int64_t left = rows;
  for (size_t index = 0; index < splits.size(); ++index) {
    const int64_t split = in_range({splits_argument, index}, splits[index], 0, rows);
    left = std::max<int64_t>(left - split, -1);  // -1: too many; never overflows.
    elements.push_back(static_cast<uint64_t>(split) * row);
  }
  if (left != 0)
    refuse({splits_argument}, c10::str("numbers of rows that add up to the tensor's ", rows),
           c10::str(c10::IntArrayRef(splits)));
  return cut(whole, item_bytes(tensor, whole), elements);
}

}  // namespace tokenyard::torch_backend
