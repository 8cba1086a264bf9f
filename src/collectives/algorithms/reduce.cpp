#include "collectives/algorithms/reduce.hpp"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "collectives/algorithms/short_float.hpp"
#include "collectives/algorithms/wide_vectors.hpp"

namespace tokenyard::collectives {

namespace {

struct Bool {
  uint8_t value;
};

template <typename T>
struct Complex {
  using Part = T;
  T real, imaginary;
  Complex operator+(Complex b) const { return {real + b.real, imaginary + b.imaginary}; }
  /// Omits the standard's special case for infinities, which vector units cannot do.
  Complex operator*(Complex b) const {
    return {real * b.real - imaginary * b.imaginary, real * b.imaginary + imaginary * b.real};
  }
  Complex operator/(T b) const { return {real / b, imaginary / b}; }
};

template <typename T>
struct TypeTag {
  using type = T;
};

/// An element of any alignment.
template <typename T>
struct [[gnu::packed]] Anywhere {
  T value;
};

template <typename T>
constexpr bool is_short_float = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
constexpr bool is_complex = std::is_same_v<T, Complex<float>> || std::is_same_v<T, Complex<double>>;
template <typename T>
constexpr bool is_bool = std::is_same_v<T, Bool>;
template <typename T>
constexpr bool is_bits = std::is_integral_v<T> || is_bool<T>;
template <typename T>
constexpr bool is_ordered = !is_complex<T>;

/// A loop over independent elements. Also compiled for the widest vectors, used where a machine has
/// them: with the narrow ones that all machines have, summing cached data takes longer than memory
/// does.
template <typename Body>
[[gnu::always_inline]] inline void plain_loop(size_t elements, const Body& body) {
  for (size_t i = 0; i < elements; ++i) body(i);
}
#ifdef __x86_64__
template <typename Body>
TOKENYARD_WIDE_VECTORS void wide_loop(size_t elements, const Body& body) {
  plain_loop(elements, body);
}
#endif
template <typename Body>
void for_each_index(size_t elements, const Body& body) {
#ifdef __x86_64__
  if (has_wide_vectors()) return wide_loop(elements, body);
#endif
  plain_loop(elements, body);
}

/// Calls `body` with the C++ type of a DataType.
template <typename Body>
auto with_type(DataType type, Body body) {
  switch (type) {
    case DataType::boolean:
      return body(TypeTag<Bool>());
    case DataType::uint8:
      return body(TypeTag<uint8_t>());
    case DataType::int8:
      return body(TypeTag<int8_t>());
    case DataType::uint16:
      return body(TypeTag<uint16_t>());
    case DataType::int16:
      return body(TypeTag<int16_t>());
    case DataType::uint32:
      return body(TypeTag<uint32_t>());
    case DataType::int32:
      return body(TypeTag<int32_t>());
    case DataType::uint64:
      return body(TypeTag<uint64_t>());
    case DataType::int64:
      return body(TypeTag<int64_t>());
    case DataType::float16:
      return body(TypeTag<Float16>());
    case DataType::bfloat16:
      return body(TypeTag<BFloat16>());
    case DataType::float32:
      return body(TypeTag<float>());
    case DataType::float64:
      return body(TypeTag<double>());
    case DataType::complex64:
      return body(TypeTag<Complex<float>>());
    case DataType::complex128:
      return body(TypeTag<Complex<double>>());
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      break;
  }
  throw InvalidArgument("array", "elements of a type that can be reduced",
                        tokenyard::name_of(type));
}

/// Returns the number to calculate with.
template <typename T>
auto number(T value) {
  if constexpr (is_short_float<T>) {
    return value.wide();
  } else if constexpr (is_bool<T>) {
    return static_cast<unsigned>(value.value != 0);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);  // sums wrap around
  } else {
    return value;
  }
}

template <typename T, typename Number>
T element(Number value) {
  if constexpr (is_short_float<T>) {
    return T::rounded(value);
  } else if constexpr (is_bool<T>) {
    return Bool{static_cast<uint8_t>(value != 0)};
  } else {
    return static_cast<T>(value);
  }
}

template <ReduceOp op, typename Number>
Number combined(Number a, Number b) {
  if constexpr (op == ReduceOp::sum) {
    return static_cast<Number>(a + b);
  } else if constexpr (op == ReduceOp::product) {
    if constexpr (sizeof(Number) < sizeof(unsigned)) {
      return static_cast<Number>(static_cast<unsigned>(a) * b);  // int would overflow
    } else {
      return static_cast<Number>(a * b);
    }
  } else if constexpr (op == ReduceOp::min) {
    return ((a < b) | (a != a)) ? a : b;  // a NaN on either side stays
  } else if constexpr (op == ReduceOp::max) {
    return ((a > b) | (a != a)) ? a : b;
  } else if constexpr (op == ReduceOp::bit_and) {
    return static_cast<Number>(a & b);
  } else if constexpr (op == ReduceOp::bit_or) {
    return static_cast<Number>(a | b);
  } else {
    return static_cast<Number>(a ^ b);
  }
}

template <ReduceOp op, typename Into, typename Second>
Into combined_elements(Into a, Second b) {
  if constexpr (std::is_integral_v<Into> && (op == ReduceOp::min || op == ReduceOp::max)) {
    return combined<op, Into>(a, b);  // order has a sign
  } else {
    return element<Into>(combined<op>(number(a), number(b)));
  }
}

template <ReduceOp op, typename Into, typename Second>
void combine(void* into, const void* first, const void* second, size_t elements) {
  auto* out = static_cast<Anywhere<Into>*>(into);
  const auto* a = static_cast<const Anywhere<Into>*>(first);
  const auto* b = static_cast<const Anywhere<Second>*>(second);
  for_each_index(
      elements, [=](size_t i) __attribute__((always_inline)) {
        out[i].value = combined_elements<op, Into, Second>(a[i].value, b[i].value);
      });
}

template <typename T, ReduceOp op>
constexpr bool allowed() {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::product:
      return true;
    case ReduceOp::average:
      return std::is_floating_point_v<T> || is_short_float<T> || is_complex<T>;
    case ReduceOp::min:
    case ReduceOp::max:
      return is_ordered<T>;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor:
      return is_bits<T>;
  }
  return false;
}

/// Returns null if the type does not have this reduction.
template <typename Into, typename Second>
Combine combine_for(ReduceOp op) {
  const auto pick = [&]<ReduceOp... ops>() {
    Combine found = nullptr;
    const auto try_one = [&]<ReduceOp one>() {
      if constexpr (allowed<Second, one>()) {
        constexpr ReduceOp arithmetic = one == ReduceOp::average ? ReduceOp::sum : one;
        if (op == one) found = &combine<arithmetic, Into, Second>;
      }
    };
    (try_one.template operator()<ops>(), ...);
    return found;
  };
  return pick
      .template operator()<ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min,
                           ReduceOp::max, ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor>();
}

Combine checked(Combine combine, DataType type, ReduceOp op) {
  if (combine != nullptr) return combine;
  throw InvalidArgument("op", fmt::format("a reduction that {} has", tokenyard::name_of(type)),
                        tokenyard::name_of(op));
}

}  // namespace

Combine combine_of(DataType type, ReduceOp op) {
  return checked(with_type(type, [&]<typename T>(TypeTag<T>) { return combine_for<T, T>(op); }),
                 type, op);
}

void check_reducible(DataType type, ReduceOp op) {
  combine_of(type, op);
}

DataType accumulator_of(DataType type) {
  const bool short_float = type == DataType::float16 || type == DataType::bfloat16;
  return short_float ? DataType::float32 : type;
}

Combine accumulate_of(DataType type, ReduceOp op) {
  const auto pick = [&]<typename T>(TypeTag<T>) {
    return combine_for<std::conditional_t<is_short_float<T>, float, T>, T>(op);
  };
  return checked(with_type(type, pick), type, op);
}

void widen(void* into, const void* from, DataType type, size_t elements) {
  with_type(type, [&]<typename T>(TypeTag<T>) {
    if constexpr (is_short_float<T>) {
      auto* out = static_cast<Anywhere<float>*>(into);
      const auto* in = static_cast<const Anywhere<T>*>(from);
      for_each_index(
          elements, [=](size_t i)
                        __attribute__((always_inline)) { out[i].value = T(in[i].value).wide(); });
    } else {
      if (elements > 0) std::memmove(into, from, elements * sizeof(T));
    }
  });
}

void narrow(void* into, const void* from, DataType type, size_t elements) {
  with_type(type, [&]<typename T>(TypeTag<T>) {
    if constexpr (is_short_float<T>) {
      auto* out = static_cast<Anywhere<T>*>(into);
      const auto* in = static_cast<const Anywhere<float>*>(from);
      for_each_index(
          elements, [=](size_t i)
                        __attribute__((always_inline)) { out[i].value = T::rounded(in[i].value); });
    } else {
      if (elements > 0) std::memmove(into, from, elements * sizeof(T));
    }
  });
}

void divide(void* data, DataType type, size_t elements, uint32_t by) {
  with_type(type, [&]<typename T>(TypeTag<T>) {
    if constexpr (allowed<T, ReduceOp::average>()) {
      auto* out = static_cast<Anywhere<T>*>(data);
      for_each_index(
          elements, [=](size_t i) __attribute__((always_inline)) {
            const auto value = number(T(out[i].value));
            if constexpr (is_complex<T>) {
              out[i].value = value / static_cast<typename T::Part>(by);
            } else {
              out[i].value = element<T>(value / static_cast<decltype(value)>(by));
            }
          });
    } else {
      throw InternalError("integers cannot be averaged");
    }
  });
}

}  // namespace tokenyard::collectives
