/// Tensors as the core takes them.
#pragma once

#include <ATen/ATen.h>

#include <numeric>
#include <optional>
#include <vector>

#include "core_table.hpp"

namespace tokenyard::torch_backend {

/// The type's name in the core; nothing for types that it does not reduce.
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

inline void check(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu(),
                    "backend tokenyard moves CPU tensors; this one is on ", tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "Tensors must be dense; this one is ",
                    tensor.layout());
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(),
                    "Tensors must be resolved: resolve_conj(), resolve_neg()");
}

/// To be reduced. Elements in the order in which they lie: dense layouts other than the usual one
/// are as good, if all ranks have the same, which torch leaves to its users.
inline core::Array reduced(const at::Tensor& tensor) {
  check(tensor);
  const std::optional<core::Type> type = type_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(type, "backend tokenyard does not reduce ", tensor.scalar_type());
  return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *type};
}

/// To be moved only: any type at all.
inline core::Array moved(const at::Tensor& tensor) {
  check(tensor);
  if (const std::optional<core::Type> type = type_of(tensor.scalar_type()))
    return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *type};
  return {tensor.data_ptr(), tensor.nbytes(), core::Type::uint8};
}

template <core::Array (*describe)(const at::Tensor&)>
std::vector<core::Array> each(const std::vector<at::Tensor>& tensors) {
  std::vector<core::Array> arrays;
  arrays.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) arrays.push_back(describe(tensor));
  return arrays;
}

/// Whose parts are somebody else's: the usual order only.
inline core::Array divided(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous");
  return moved(tensor);
}

inline size_t item_bytes(const at::Tensor& tensor, const core::Array& array) {
  return array.elements == 0 ? 0 : tensor.nbytes() / array.elements;
}

/// Cuts an array into parts of so many elements each, in order.
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

/// As many equal parts as there are ranks.
inline std::vector<core::Array> cut_equally(const at::Tensor& tensor, int ranks) {
  TORCH_CHECK_VALUE(tensor.numel() % ranks == 0, "A tensor of ", tensor.numel(),
                    " elements cannot be cut into ", ranks, " equal parts");
  const core::Array whole = divided(tensor);
  return cut(whole, item_bytes(tensor, whole),
             std::vector<uint64_t>(ranks, whole.elements / ranks));
}

/// Parts along the first dimension, of `splits` rows each; of equal size if there are no splits.
inline std::vector<core::Array> cut_rows(const at::Tensor& tensor,
                                         const std::vector<int64_t>& splits, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0,
                      "Tensor's dim 0 does not divide equally across group size");
    return cut_equally(tensor, ranks);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(ranks),
                    "Number of tensor splits not equal to group size");
  TORCH_CHECK_VALUE(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
                    "Split sizes doesn't match total dim 0 size");
  const core::Array whole = divided(tensor);
  const uint64_t row = rows == 0 ? 0 : whole.elements / rows;
  std::vector<uint64_t> elements;
  for (const int64_t split : splits) elements.push_back(split * row);
  return cut(whole, item_bytes(tensor, whole), elements);
}

}  // namespace tokenyard::torch_backend
