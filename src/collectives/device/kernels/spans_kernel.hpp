/// Spans: the bytes that a warp copies or folds at a time. Many loads are in flight before the
/// first of them is used, since a link or memory answers after a microsecond.
///
/// A span is worked off in steps of `count` pieces per lane, then in single pieces of any
/// alignment. No access of a step is conditional: a register that is loaded on a condition must
/// keep what it held before, and compilers spilled all of them.
#pragma once

#include <algorithm>
#include <concepts>

#include "collectives/device/kernels/arithmetic.hpp"
#include "collectives/device/kernels/pieces.hpp"
#include "device/device.hpp"

namespace tokenyard::device_collectives {

namespace spans {

/// Bytes that a warp moves with one instruction.
inline constexpr uint32_t kRow = kWarpLanes * Piece16::kBytes;

TOKENYARD_DEVICE uint32_t lane_at() {
  return warp::lane() * Piece16::kBytes;
}
template <class... Address>
TOKENYARD_DEVICE bool are_aligned(Address... address) {
  return (pieces::low_bits(address) | ...) % Piece16::kBytes == 0;
}
TOKENYARD_DEVICE std::ptrdiff_t distance(uint32_t bytes) {
  return static_cast<std::ptrdiff_t>(bytes);
}
template <uint32_t count, class Address>
TOKENYARD_DEVICE void load_rows(Address from, Piece16 (&held)[count]) {
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < count; ++k) held[k] = pieces::load_whole(from + distance(k * kRow));
}
template <uint32_t count, class Address>
TOKENYARD_DEVICE void store_rows(Address to, const Piece16 (&held)[count]) {
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < count; ++k) pieces::store_whole(to + distance(k * kRow), held[k]);
}

/// Copies whole steps from `done` on. Returns where it ended.
template <uint32_t count, class From, class To>
TOKENYARD_DEVICE uint32_t copy_steps(From from, To to, uint32_t done, uint32_t bytes) {
  TOKENYARD_KEEP_ROLLED
  for (; done + count * kRow <= bytes; done += count * kRow) {
    Piece16 held[count];
    load_rows(from + distance(done + lane_at()), held);
    store_rows(to + distance(done + lane_at()), held);
  }
  return done;
}

/// Stores a step in every target.
template <uint32_t count, class Targets>
TOKENYARD_DEVICE void store_in_all(const Targets& targets, uint32_t done,
                                   const Piece16 (&held)[count]) {
  TOKENYARD_KEEP_ROLLED
  for (uint32_t target = 0; target < targets.count(); ++target)
    store_rows(targets(target) + distance(done + lane_at()), held);
}

/// Folds whole steps of two sources from `done` on, holding nothing but what has been loaded.
/// Returns where it ended.
template <uint32_t count, class T, bool adds, class Sources, class Targets>
TOKENYARD_DEVICE uint32_t fold_steps_of_two(const Folding& by, uint32_t done, uint32_t bytes,
                                            const Sources& sources, const Targets& targets) {
  const auto first = sources(0), second = sources(1);
  TOKENYARD_KEEP_ROLLED
  for (; done + count * kRow <= bytes; done += count * kRow) {
    Piece16 held[count], others[count];
    load_rows(first + distance(done + lane_at()), held);
    load_rows(second + distance(done + lane_at()), others);
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k) {
      Fold<T, 4, adds> fold;
      fold.begin(by, held[k]);
      fold.add(by, others[k]);
      held[k] = fold.end(by);
    }
    store_in_all(targets, done, held);
  }
  return done;
}

/// Folds whole steps of any number of sources from `done` on: loads those of four sources before it
/// folds any, and holds the folds of the earlier ones. Returns where it ended.
template <uint32_t count, class T, bool adds, class Sources, class Targets>
TOKENYARD_DEVICE uint32_t fold_steps(const Folding& by, uint32_t done, uint32_t bytes,
                                     const Sources& sources, const Targets& targets) {
  constexpr uint32_t kAtOnce = 4;
  TOKENYARD_KEEP_ROLLED
  for (; done + count * kRow <= bytes; done += count * kRow) {
    Fold<T, 4, adds> folds[count];
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first = 0; first < by.ranks; first += kAtOnce) {
      Piece16 held[kAtOnce][count];
      // Beyond the last source, the last one is loaded again and not used.
      TOKENYARD_UNROLL
      for (uint32_t s = 0; s < kAtOnce; ++s)
        load_rows(sources(std::min(first + s, by.ranks - 1)) + distance(done + lane_at()), held[s]);
      TOKENYARD_UNROLL
      for (uint32_t s = 0; s < kAtOnce; ++s) {
        if (first + s >= by.ranks) break;
        TOKENYARD_UNROLL
        for (uint32_t k = 0; k < count; ++k)
          if (first + s == 0)
            folds[k].begin(by, held[s][k]);
          else
            folds[k].add(by, held[s][k]);
      }
    }
    Piece16 results[count];
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k) results[k] = folds[k].end(by);
    store_in_all(targets, done, results);
  }
  return done;
}

/// Folds the bytes from `done` on, of spans of any alignment: few of them, or an unusual tensor.
template <class T, class Sources, class Targets>
TOKENYARD_DEVICE void fold_bytes(const Folding& by, uint32_t done, uint32_t bytes,
                                 const Sources& sources, const Targets& targets) {
  TOKENYARD_KEEP_ROLLED
  for (; done < bytes; done += kRow) {
    const uint32_t at = done + lane_at();
    const uint32_t count = at < bytes ? Piece16::bytes_of(bytes - at) : 0;
    Fold<T, 4> fold;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t source = 0; source < by.ranks; ++source) {
      const auto span = sources(source);
      const Piece16 piece = count > 0 ? load_piece<4>(span + distance(at), count) : Piece16{};
      if (source == 0)
        fold.begin(by, piece);
      else
        fold.add(by, piece);
    }
    const Piece16 result = fold.end(by);
    TOKENYARD_KEEP_ROLLED
    for (uint32_t target = 0; target < targets.count(); ++target) {
      const auto to = targets(target);
      if (count > 0) store_piece(to + distance(at), result, count);
    }
  }
}

}  // namespace spans

/// Copies a span. Called by a warp.
template <class From, class To>
TOKENYARD_DEVICE void copy_span(From from, To to, uint32_t bytes) {
  uint32_t done = 0;
  if (spans::are_aligned(from, to)) {
    done = spans::copy_steps<8>(from, to, done, bytes);
    done = spans::copy_steps<2>(from, to, done, bytes);
  }
  TOKENYARD_KEEP_ROLLED
  for (uint32_t at = done + spans::lane_at(); at < bytes; at += spans::kRow) {
    const uint32_t count = Piece16::bytes_of(bytes - at);
    store_piece(to + spans::distance(at), load_piece<4>(from + spans::distance(at), count), count);
  }
}

/// Folds the spans of `by.ranks` sources, in their order, into every target. `sources(i)` and
/// `targets(i)` return addresses, alike in all lanes; `targets.count()` how many there are.
/// `aligned`: all of them are multiples of 16. A target may be a source. Called by a warp.
template <class T, class Sources, class Targets>
TOKENYARD_DEVICE void fold_span(const Folding& by, uint32_t bytes, bool aligned,
                                const Sources& sources, const Targets& targets) {
  uint32_t done = 0;
  if constexpr (std::floating_point<typename NumberOf<T>::type>) {
    // Sums of floats are what trains models: without a choice of the operator per element.
    if (aligned && by.adds() && by.ranks == 2) {
      done = spans::fold_steps_of_two<8, T, true>(by, done, bytes, sources, targets);
      done = spans::fold_steps_of_two<2, T, true>(by, done, bytes, sources, targets);
    } else if (aligned && by.adds()) {
      constexpr uint32_t kCount = sizeof(T) == 1 ? 1 : 4;  // A byte takes a register of its own.
      done = spans::fold_steps<kCount, T, true>(by, done, bytes, sources, targets);
    }
  }
  if (aligned) done = spans::fold_steps<1, T, false>(by, done, bytes, sources, targets);
  spans::fold_bytes<T>(by, done, bytes, sources, targets);
}

}  // namespace tokenyard::device_collectives
