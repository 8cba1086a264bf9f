/// Arrays as callers hand them over and get them back: an address together with the type and shape
/// of what lies there. Every call checks them before anything moves.
///
///     exchange.dispatch({.x = {x, DataType::bfloat16, {tokens, hidden}},
///                        .topk_idx = {ids, {tokens, topk}}});
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "tokenyard/error.hpp"

namespace tokenyard {

/// The type of an array's elements.
enum class DataType : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
};

/// Returns the bytes of an element; 0 for a value that names no type.
constexpr size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::boolean:
    case DataType::uint8:
    case DataType::int8:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return 1;
    case DataType::uint16:
    case DataType::int16:
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::uint32:
    case DataType::int32:
    case DataType::float32:
      return 4;
    case DataType::uint64:
    case DataType::int64:
    case DataType::float64:
    case DataType::complex64:
      return 8;
    case DataType::complex128:
      return 16;
  }
  return 0;
}

/// Returns NumPy's name of the type: "bool", "float32", ...
std::string name_of(DataType type);

/// A C++ type whose DataType is known. The others (BF16, FP8, ...) are named beside the address.
template <class T>
concept TensorElement =
    std::integral<std::remove_cv_t<T>> || std::same_as<std::remove_cv_t<T>, std::byte> ||
    std::same_as<std::remove_cv_t<T>, float> || std::same_as<std::remove_cv_t<T>, double>;

template <TensorElement T>
constexpr DataType data_type_of() {
  using Element = std::remove_cv_t<T>;
  if constexpr (std::same_as<Element, bool>) return DataType::boolean;
  if constexpr (std::same_as<Element, std::byte>) return DataType::uint8;
  if constexpr (std::same_as<Element, float>) return DataType::float32;
  if constexpr (std::same_as<Element, double>) return DataType::float64;
  constexpr bool is_signed = std::is_signed_v<Element>;
  switch (sizeof(Element)) {
    case 1:
      return is_signed ? DataType::int8 : DataType::uint8;
    case 2:
      return is_signed ? DataType::int16 : DataType::uint16;
    case 4:
      return is_signed ? DataType::int32 : DataType::uint32;
    default:
      return is_signed ? DataType::int64 : DataType::uint64;
  }
}

/// An array of up to four dimensions in memory that somebody else owns: host memory on a host
/// world, device memory on a GPU. A default one stands for no array, as where an argument is left
/// out. Use TensorView for memory that a call writes, ConstTensorView for memory that it reads.
template <class Memory>
struct BasicTensorView {
  static constexpr uint32_t kDimsMax = 4;

  Memory* data = nullptr;
  DataType type = DataType::uint8;
  uint32_t dims = 0;                            ///< 0: no array
  std::array<uint64_t, kDimsMax> shape = {};    ///< [dims] elements per dimension
  std::array<uint64_t, kDimsMax> strides = {};  ///< [dims] elements from one index to the next

  constexpr BasicTensorView() = default;
  /// A contiguous array. Throws InvalidArgument for more than four dimensions.
  constexpr BasicTensorView(Memory* data, DataType type, std::initializer_list<uint64_t> shape)
      : data(data), type(type), dims(static_cast<uint32_t>(shape.size())) {
    if (shape.size() > kDimsMax)
      throw InvalidArgument("shape", "at most 4 dimensions", std::to_string(shape.size()));
    uint32_t dim = 0;
    for (const uint64_t size : shape) this->shape[dim++] = size;
    uint64_t stride = 1;
    for (dim = dims; dim-- > 0;) {
      strides[dim] = stride;
      stride = product(stride, this->shape[dim]);
    }
  }
  /// The same, of elements whose C++ type names their DataType.
  template <TensorElement T>
    requires std::convertible_to<T*, Memory*>
  constexpr BasicTensorView(T* data, std::initializer_list<uint64_t> shape)
      : BasicTensorView(data, data_type_of<T>(), shape) {}
  /// What is written can be read.
  template <std::same_as<void> Written>
    requires std::is_const_v<Memory>
  constexpr BasicTensorView(const BasicTensorView<Written>& other)
      : data(other.data),
        type(other.type),
        dims(other.dims),
        shape(other.shape),
        strides(other.strides) {}

  /// One dimension: all elements of a span.
  template <TensorElement T, size_t extent>
  static constexpr BasicTensorView of(std::span<T, extent> elements) {
    return {elements.data(), {elements.size()}};
  }
  /// Memory whose elements are of any type: so many bytes of it.
  static constexpr BasicTensorView bytes_at(Memory* data, uint64_t bytes) {
    return {data, DataType::uint8, {bytes}};
  }
  /// The same elements with other strides, in elements.
  constexpr BasicTensorView with_strides(std::initializer_list<uint64_t> of_dims) const {
    if (of_dims.size() != dims)
      throw InvalidArgument("strides", std::to_string(dims), std::to_string(of_dims.size()));
    BasicTensorView view = *this;
    uint32_t dim = 0;
    for (const uint64_t stride : of_dims) view.strides[dim++] = stride;
    return view;
  }

  /// Whether there is an array at all; one without elements is one.
  constexpr bool given() const { return dims != 0; }
  /// Sizes that 64 bits cannot hold stay at the largest number.
  constexpr uint64_t elements() const {
    uint64_t count = given() ? 1 : 0;
    for (uint32_t dim = 0; dim < dims; ++dim) {
      if (shape[dim] == 0) return 0;
      count = product(count, shape[dim]);
    }
    return count;
  }
  /// Bytes of the elements, without gaps between them.
  constexpr uint64_t bytes() const { return product(elements(), bytes_of(type)); }
  /// Whether elements follow one another in the order of their indices, without gaps.
  constexpr bool contiguous() const {
    if (elements() == 0) return true;
    uint64_t stride = 1;
    for (uint32_t dim = dims; dim-- > 0;) {
      if (shape[dim] != 1 && strides[dim] != stride) return false;
      stride = product(stride, shape[dim]);
    }
    return true;
  }
  /// The address as that of elements of a C++ type, whatever `type` says: bits of BF16 as uint16_t,
  /// for one.
  template <class T>
  constexpr auto* as() const {
    if constexpr (std::is_const_v<Memory>)
      return static_cast<const T*>(data);
    else
      return static_cast<T*>(data);
  }
  /// "[4, 64] of bfloat16", or "none".
  std::string text() const {
    if (!given()) return "none";
    std::string text = "[";
    for (uint32_t dim = 0; dim < dims; ++dim)
      text += (dim == 0 ? "" : ", ") + std::to_string(shape[dim]);
    return text + "] of " + name_of(type);
  }

 private:
  static constexpr uint64_t product(uint64_t a, uint64_t b) {
    uint64_t both = 0;
    return __builtin_mul_overflow(a, b, &both) ? UINT64_MAX : both;
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

}  // namespace tokenyard
