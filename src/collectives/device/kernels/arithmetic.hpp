/// Reductions of pieces. Elements of 16- and 8-bit floats are widened once, folded in float32 in
/// the order in which they are given, and rounded once, so results are the same bits however a call
/// is divided.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "collectives/device/kernels/pieces.hpp"
#include "device/functions.hpp"
#include "device/numbers.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/tensor.hpp"

namespace tokenyard::device_collectives {

/// A boolean as its byte.
struct Boolean {
  uint8_t byte;
};

template <class T>
inline constexpr bool kIsShortFloat = std::same_as<T, BFloat16> || std::same_as<T, Float16> ||
                                      std::same_as<T, Float8E4M3> || std::same_as<T, Float8E5M2>;

/// The type in which elements of type T are folded. Signed integers wrap around, so they are
/// folded as unsigned ones.
template <class T>
struct NumberOf {
  using type = T;
};
template <>
struct NumberOf<BFloat16> {
  using type = float;
};
template <>
struct NumberOf<Float16> {
  using type = float;
};
template <>
struct NumberOf<Float8E4M3> {
  using type = float;
};
template <>
struct NumberOf<Float8E5M2> {
  using type = float;
};
template <>
struct NumberOf<Boolean> {
  using type = uint32_t;
};
template <std::integral T>
struct NumberOf<T> {
  using type = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
};

/// The bits of an element, as an unsigned integer of its size.
template <uint32_t bytes>
using Bits = std::conditional_t<
    bytes == 8, uint64_t,
    std::conditional_t<bytes == 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>>;

template <class T>
TOKENYARD_DEVICE typename NumberOf<T>::type number_of(T element) {
  if constexpr (kIsShortFloat<T>)
    return to_float(element);
  else if constexpr (std::same_as<T, Boolean>)
    return element.byte != 0 ? 1 : 0;
  else if constexpr (std::integral<T>)
    // Sign-extends, so that an order of signed numbers needs no other number.
    return static_cast<typename NumberOf<T>::type>(
        static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(element));
  else
    return element;
}

/// Converts to E5M2. An infinity, of an element or of a sum too large for float32, stays one; what
/// is too large otherwise becomes the largest number, as in E4M3.
TOKENYARD_DEVICE Float8E5M2 kept_infinity(float number) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const auto bits = std::bit_cast<uint32_t>(number);
  if ((bits & 0x7fffffff) != kInfinity) return to_float8_e5m2(number);
  return {static_cast<uint8_t>((bits >> 24 & 0x80) | 0x7c)};
}

template <class T>
TOKENYARD_DEVICE T element_of(typename NumberOf<T>::type number) {
  if constexpr (std::same_as<T, BFloat16>)
    return to_bfloat16(number);
  else if constexpr (std::same_as<T, Float16>)
    return Float16{static_cast<uint16_t>(to_float16_pair(number, 0.0f) & 0xffff)};
  else if constexpr (std::same_as<T, Float8E4M3>)
    return to_float8_e4m3(number);
  else if constexpr (std::same_as<T, Float8E5M2>)
    return kept_infinity(number);
  else if constexpr (std::same_as<T, Boolean>)
    return Boolean{static_cast<uint8_t>(number != 0)};
  else
    return static_cast<T>(number);
}

/// How a call folds.
struct Folding {
  ReduceOp op;
  double factor;   ///< of each summand; 1 for other operators and types
  uint32_t ranks;  ///< divisor of an average

  TOKENYARD_DEVICE bool adds() const { return op == ReduceOp::sum || op == ReduceOp::average; }
};

/// Adds `b` to `a`. One rounding, as if the product were exact; with a factor of 1 that of the sum.
template <class Number>
TOKENYARD_DEVICE Number added(const Folding& by, Number a, Number b) {
  if constexpr (std::floating_point<Number>)
    return multiply_add(b, static_cast<Number>(by.factor), a);
  else
    return a + b;
}

/// Folds `b` into `a`. A NaN on either side stays.
template <class T, class Number>
TOKENYARD_DEVICE Number folded(const Folding& by, Number a, Number b) {
  constexpr bool is_signed = std::integral<T> && std::is_signed_v<T>;
  const auto less = [](Number x, Number y) {
    if constexpr (is_signed)
      return static_cast<std::make_signed_t<Number>>(x) <
             static_cast<std::make_signed_t<Number>>(y);
    else
      return x < y;
  };
  const ReduceOp op = by.op;
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return less(a, b) || a != a ? a : b;
    case ReduceOp::max:
      return less(b, a) || a != a ? a : b;
    default:
      break;
  }
  if constexpr (std::integral<Number>) {
    if (op == ReduceOp::bit_and) return a & b;
    if (op == ReduceOp::bit_or) return a | b;
    if (op == ReduceOp::bit_xor) return a ^ b;
  }
  return added(by, a, b);
}

/// The fold of pieces of elements of type T. `adds`: by `Folding::adds`, known to the compiler.
template <class T, uint32_t words, bool adds = false>
class Fold {
 public:
  using Number = typename NumberOf<T>::type;
  static constexpr uint32_t kElements = 4 * words / sizeof(T);

  TOKENYARD_DEVICE void begin(const Folding& by, const Piece<words>& piece) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      numbers_[i] = number_of(element_at(piece, i));
      if constexpr (std::floating_point<Number>) numbers_[i] *= static_cast<Number>(by.factor);
    }
  }
  TOKENYARD_DEVICE void add(const Folding& by, const Piece<words>& piece) {
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kElements; ++i)
      if constexpr (adds)
        numbers_[i] = added(by, numbers_[i], number_of(element_at(piece, i)));
      else
        numbers_[i] = folded<T>(by, numbers_[i], number_of(element_at(piece, i)));
  }
  /// Returns the result.
  TOKENYARD_DEVICE Piece<words> end(const Folding& by) const {
    Piece<words> piece{};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      Number number = numbers_[i];
      if constexpr (std::floating_point<Number>)
        if (by.op == ReduceOp::average) number /= static_cast<Number>(by.ranks);
      set_element(piece, i, element_of<T>(number));
    }
    return piece;
  }

 private:
  TOKENYARD_DEVICE static T element_at(const Piece<words>& piece, uint32_t i) {
    using Word = Bits<sizeof(T)>;
    if constexpr (sizeof(T) == 8)
      return std::bit_cast<T>(piece.word[2 * i] | uint64_t{piece.word[2 * i + 1]} << 32);
    constexpr uint32_t kInWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    if constexpr (sizeof(T) <= 4)
      return std::bit_cast<T>(
          static_cast<Word>(piece.word[i / kInWord] >> i % kInWord * (32 / kInWord)));
  }
  TOKENYARD_DEVICE static void set_element(Piece<words>& piece, uint32_t i, T element) {
    const auto bits = std::bit_cast<Bits<sizeof(T)>>(element);
    if constexpr (sizeof(T) == 8) {
      piece.word[2 * i] = static_cast<uint32_t>(bits);
      piece.word[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
    } else {
      constexpr uint32_t kInWord = 4 / sizeof(T);
      piece.word[i / kInWord] |= uint32_t{bits} << i % kInWord * (32 / kInWord);
    }
  }

  Number numbers_[kElements] = {};
};

/// Some of the types that can be reduced.
template <class... Types>
struct ElementTypes {
  template <class T>
  static constexpr bool kHas = (std::same_as<T, Types> || ...);
};
using FloatTypes = ElementTypes<float, double>;
using HalfTypes = ElementTypes<Float16, BFloat16>;
using Float8Types = ElementTypes<Float8E4M3, Float8E5M2>;
using ByteTypes = ElementTypes<Boolean, uint8_t, int8_t>;
using Integer16Types = ElementTypes<uint16_t, int16_t>;

/// Calls `body` with an element of the type, of a kind that can be reduced.
template <class Body>
TOKENYARD_DEVICE void with_element(DataType type, Body body) {
  switch (type) {
    case DataType::boolean:
      return body(Boolean{});
    case DataType::uint8:
      return body(uint8_t{});
    case DataType::int8:
      return body(int8_t{});
    case DataType::uint16:
      return body(uint16_t{});
    case DataType::int16:
      return body(int16_t{});
    case DataType::uint32:
      return body(uint32_t{});
    case DataType::int32:
      return body(int32_t{});
    case DataType::uint64:
      return body(uint64_t{});
    case DataType::int64:
      return body(int64_t{});
    case DataType::float16:
      return body(Float16{});
    case DataType::bfloat16:
      return body(BFloat16{});
    case DataType::float8_e4m3fn:
      return body(Float8E4M3{});
    case DataType::float8_e5m2:
      return body(Float8E5M2{});
    case DataType::float32:
      return body(float{});
    case DataType::float64:
      return body(double{});
    default:
      return;  // The host refuses other types.
  }
}

}  // namespace tokenyard::device_collectives
