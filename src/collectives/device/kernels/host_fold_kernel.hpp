/// Sums in two steps: of the ranks of a host, then of hosts. A partial sum of 16- and 8-bit floats
/// is a float32, which is rounded once, after the last host.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "collectives/device/kernels/arithmetic.hpp"
#include "collectives/device/kernels/spans_kernel.hpp"

namespace tokenyard::device_collectives {

/// The type in which a partial sum of elements of type T travels.
template <class T>
using PartialOf = std::conditional_t<kIsShortFloat<T>, float, T>;

/// How one step folds.
struct HostFold {
  ReduceOp op;
  uint32_t sources;
  double first_scale = 1, later_scale = 1;  ///< of the first source's elements, and of the others'
  double factor = 1;                        ///< by which each later element is multiplied as it is
                                            ///< added, rounded once
  uint32_t divisor = 1;                     ///< of an average
};

namespace host_fold {

template <class T>
struct Elements {
  T at[Piece16::kBytes / sizeof(T)];
};

/// The pieces of In that hold as many elements as one piece of T.
template <class T, class In>
struct Pieces {
  static constexpr uint32_t kCount = sizeof(In) / sizeof(T);
  static constexpr uint32_t kElements = Piece16::kBytes / sizeof(T);
  Piece16 piece[kCount];

  TOKENYARD_DEVICE typename NumberOf<T>::type number(uint32_t i) const {
    constexpr uint32_t kEach = Piece16::kBytes / sizeof(In);
    return number_of(std::bit_cast<Elements<In>>(piece[i / kEach]).at[i % kEach]);
  }
};

/// Loads `bytes` of T, at most a piece, as they lie in an array of In.
template <class T, class In, class Address>
TOKENYARD_DEVICE Pieces<T, In> load_some(Address from, uint32_t bytes) {
  Pieces<T, In> loaded;
  constexpr uint32_t kCount = Pieces<T, In>::kCount;
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < kCount; ++k) {
    const uint32_t all = bytes * kCount, before = k * Piece16::kBytes;
    const uint32_t count = all > before ? Piece16::bytes_of(all - before) : 0;
    loaded.piece[k] = count > 0 ? load_piece<4>(from + spans::distance(before), count) : Piece16{};
  }
  return loaded;
}
template <class T, class In, class Address>
TOKENYARD_DEVICE Pieces<T, In> load_all(Address from) {
  Pieces<T, In> loaded;
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < Pieces<T, In>::kCount; ++k)
    loaded.piece[k] = pieces::load_whole(from + spans::distance(k * Piece16::kBytes));
  return loaded;
}

/// A fold of as many elements as a piece of T has.
template <class T>
class Sum {
 public:
  using Number = typename NumberOf<T>::type;
  static constexpr uint32_t kElements = Piece16::kBytes / sizeof(T);

  template <class In>
  TOKENYARD_DEVICE void add(const HostFold& by, uint32_t source, const Pieces<T, In>& pieces) {
    const Folding folding{.op = by.op, .factor = by.factor, .ranks = 1};
    TOKENYARD_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) {
      Number number = pieces.number(i);
      if constexpr (std::floating_point<Number>)
        number *= static_cast<Number>(source == 0 ? by.first_scale : by.later_scale);
      numbers_[i] = source == 0 ? number : folded<T>(folding, numbers_[i], number);
    }
  }
  template <class Out>
  TOKENYARD_DEVICE Pieces<T, Out> end(const HostFold& by) const {
    constexpr uint32_t kEach = Piece16::kBytes / sizeof(Out);
    Pieces<T, Out> result;
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < Pieces<T, Out>::kCount; ++k) {
      Elements<Out> elements;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kEach; ++i) {
        Number number = numbers_[k * kEach + i];
        if constexpr (std::floating_point<Number>)
          if (by.op == ReduceOp::average) number /= static_cast<Number>(by.divisor);
        if constexpr (std::same_as<Out, T>)
          elements.at[i] = element_of<T>(number);
        else
          elements.at[i] = number;
      }
      result.piece[k] = std::bit_cast<Piece16>(elements);
    }
    return result;
  }

 private:
  Number numbers_[kElements] = {};
};

/// Folds whole rows from `done` on, `rows` at a time. Returns where it ended.
template <uint32_t rows, class T, class In, class Out, class Sources, class To>
TOKENYARD_DEVICE uint32_t fold_rows(const HostFold& by, uint32_t done, uint32_t bytes,
                                    const Sources& sources, To to) {
  constexpr uint32_t kIn = Pieces<T, In>::kCount, kOut = Pieces<T, Out>::kCount;
  TOKENYARD_KEEP_ROLLED
  for (; done + rows * spans::kRow <= bytes; done += rows * spans::kRow) {
    const uint32_t at = done + spans::lane_at();
    Sum<T> sums[rows];
    TOKENYARD_KEEP_ROLLED
    for (uint32_t source = 0; source < by.sources; ++source) {
      const auto span = sources(source);
      Pieces<T, In> held[rows];
      TOKENYARD_UNROLL
      for (uint32_t r = 0; r < rows; ++r)
        held[r] = load_all<T, In>(span + spans::distance((at + r * spans::kRow) * kIn));
      TOKENYARD_UNROLL
      for (uint32_t r = 0; r < rows; ++r) sums[r].add(by, source, held[r]);
    }
    TOKENYARD_UNROLL
    for (uint32_t r = 0; r < rows; ++r) {
      const Pieces<T, Out> result = sums[r].template end<Out>(by);
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < kOut; ++k)
        pieces::store_whole(
            to + spans::distance((at + r * spans::kRow) * kOut + k * Piece16::kBytes),
            result.piece[k]);
    }
  }
  return done;
}

}  // namespace host_fold

/// Folds spans of `bytes` of T, which the sources hold as In, into one of Out. `sources(i)` returns
/// an address, alike in all lanes. `aligned`: all addresses are multiples of 16. The target may be
/// a source. Called by a warp.
template <class T, class In, class Out, class Sources, class To>
TOKENYARD_DEVICE void fold_hosts(const HostFold& by, uint32_t bytes, bool aligned,
                                 const Sources& sources, To to) {
  using namespace host_fold;  // NOLINT(google-build-using-namespace)
  uint32_t done = 0;
  // A byte takes a register of its own.
  constexpr uint32_t kRows = sizeof(T) == 1 ? 1 : 4;
  if (aligned) done = fold_rows<kRows, T, In, Out>(by, done, bytes, sources, to);
  constexpr uint32_t kIn = Pieces<T, In>::kCount, kOut = Pieces<T, Out>::kCount;
  TOKENYARD_KEEP_ROLLED
  for (uint32_t at = done + spans::lane_at(); at < bytes; at += spans::kRow) {
    const uint32_t count = Piece16::bytes_of(bytes - at);
    Sum<T> sum;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t source = 0; source < by.sources; ++source)
      sum.add(by, source, load_some<T, In>(sources(source) + spans::distance(at * kIn), count));
    const Pieces<T, Out> result = sum.template end<Out>(by);
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kOut; ++k) {
      const uint32_t all = count * kOut, before = k * Piece16::kBytes;
      if (all > before)
        store_piece(to + spans::distance(at * kOut + before), result.piece[k],
                    Piece16::bytes_of(all - before));
    }
  }
}

}  // namespace tokenyard::device_collectives
