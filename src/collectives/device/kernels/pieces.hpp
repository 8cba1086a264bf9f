/// Pieces of an array: some words of it in registers, loaded from and stored to memory of any
/// alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/memory.hpp"
#include "device/unroll.hpp"
#include "device/vector.hpp"

namespace tokenyard::device_collectives {

/// `words`: 2 or 4.
template <uint32_t words>
struct alignas(4 * words) Piece {
  static constexpr uint32_t kBytes = 4 * words;
  uint32_t word[words];

  /// Returns the bytes of a piece that `left` bytes of an array fill.
  TOKENYARD_HOST_DEVICE static uint32_t bytes_of(uint32_t left) {
    return left < kBytes ? left : kBytes;
  }
};
using Piece8 = Piece<2>;

namespace pieces {

/// Loads `bytes` in steps of T, which divides the address and the bytes.
template <class T, uint32_t words>
TOKENYARD_DEVICE Piece<words> load_steps(const std::byte* from, uint32_t bytes) {
  Piece<words> piece{};
  constexpr uint32_t kSteps = 4 / sizeof(T);
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < words * kSteps; ++i)
    if (i * sizeof(T) < bytes) {
      const T step = load<Order::weak, Scope::gpu>(reinterpret_cast<const T*>(from) + i);
      piece.word[i / kSteps] |= static_cast<uint32_t>(step) << (i % kSteps * 8 * sizeof(T) % 32);
    }
  return piece;
}

template <class T, uint32_t words>
TOKENYARD_DEVICE void store_steps(std::byte* to, const Piece<words>& piece, uint32_t bytes) {
  constexpr uint32_t kSteps = 4 / sizeof(T);
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < words * kSteps; ++i)
    if (i * sizeof(T) < bytes)
      store<Order::weak, Scope::gpu>(
          reinterpret_cast<T*>(to) + i,
          static_cast<T>(piece.word[i / kSteps] >> (i % kSteps * 8 * sizeof(T) % 32)));
}

/// Returns a number whose lowest set bit divides the address and the bytes.
TOKENYARD_DEVICE uint32_t steps_of(const std::byte* at, uint32_t bytes) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)) | bytes;
}

}  // namespace pieces

/// Loads the first `bytes` of a piece, at most all; the others are zero.
template <uint32_t words>
TOKENYARD_DEVICE Piece<words> load_piece(const std::byte* from, uint32_t bytes) {
  const uint32_t steps = pieces::steps_of(from, bytes);
  if (steps % (4 * words) == 0) {
    if constexpr (words == 4) {
      return std::bit_cast<Piece<4>>(load_vector(reinterpret_cast<const Bytes16*>(from)));
    } else {
      return std::bit_cast<Piece<2>>(
          load<Order::weak, Scope::gpu>(reinterpret_cast<const uint64_t*>(from)));
    }
  }
  if (steps % 4 == 0) return pieces::load_steps<uint32_t, words>(from, bytes);
  if (steps % 2 == 0) return pieces::load_steps<uint16_t, words>(from, bytes);
  return pieces::load_steps<uint8_t, words>(from, bytes);
}

/// Stores the first `bytes` of a piece, at most all.
template <uint32_t words>
TOKENYARD_DEVICE void store_piece(std::byte* to, const Piece<words>& piece, uint32_t bytes) {
  const uint32_t steps = pieces::steps_of(to, bytes);
  if (steps % (4 * words) == 0) {
    if constexpr (words == 4)
      store_vector(reinterpret_cast<Bytes16*>(to), std::bit_cast<Bytes16>(piece));
    else
      store<Order::weak, Scope::gpu>(reinterpret_cast<uint64_t*>(to),
                                     std::bit_cast<uint64_t>(piece));
  } else if (steps % 4 == 0) {
    pieces::store_steps<uint32_t>(to, piece, bytes);
  } else if (steps % 2 == 0) {
    pieces::store_steps<uint16_t>(to, piece, bytes);
  } else {
    pieces::store_steps<uint8_t>(to, piece, bytes);
  }
}

}  // namespace tokenyard::device_collectives
