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
using Piece16 = Piece<4>;

namespace pieces {

// An address of bytes is this rank's own, or a Peer.
template <class T>
TOKENYARD_DEVICE const T* as(const std::byte* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
TOKENYARD_DEVICE T* as(std::byte* at) {
  return reinterpret_cast<T*>(at);
}
template <class T>
TOKENYARD_DEVICE Peer<const T> as(Peer<const std::byte> at) {
  return at.as<const T>();
}
template <class T>
TOKENYARD_DEVICE Peer<T> as(Peer<std::byte> at) {
  return at.as<T>();
}
TOKENYARD_DEVICE uint32_t low_bits(const std::byte* at) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
}
template <class Byte>
TOKENYARD_DEVICE uint32_t low_bits(Peer<Byte> at) {
  return low_bits(at.address());
}

/// Loads `bytes` in steps of T, which divides the address and the bytes.
template <class T, uint32_t words, class Address>
TOKENYARD_DEVICE Piece<words> load_steps(Address from, uint32_t bytes) {
  Piece<words> piece{};
  constexpr uint32_t kSteps = 4 / sizeof(T);
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < words * kSteps; ++i)
    if (i * sizeof(T) < bytes) {
      const T step = load<Order::weak, Scope::gpu>(as<T>(from) + i);
      piece.word[i / kSteps] |= static_cast<uint32_t>(step) << (i % kSteps * 8 * sizeof(T) % 32);
    }
  return piece;
}

template <class T, uint32_t words, class Address>
TOKENYARD_DEVICE void store_steps(Address to, const Piece<words>& piece, uint32_t bytes) {
  constexpr uint32_t kSteps = 4 / sizeof(T);
  TOKENYARD_UNROLL
  for (uint32_t i = 0; i < words * kSteps; ++i)
    if (i * sizeof(T) < bytes)
      store<Order::weak, Scope::gpu>(
          as<T>(to) + i,
          static_cast<T>(piece.word[i / kSteps] >> (i % kSteps * 8 * sizeof(T) % 32)));
}

/// Loads and stores a whole piece at a multiple of 16.
template <class Address>
TOKENYARD_DEVICE Piece<4> load_whole(Address from) {
  return std::bit_cast<Piece<4>>(load_vector(as<Bytes16>(from)));
}
template <class Address>
TOKENYARD_DEVICE void store_whole(Address to, const Piece<4>& piece) {
  store_vector(as<Bytes16>(to), std::bit_cast<Bytes16>(piece));
}

/// Returns a number whose lowest set bit divides the address and the bytes.
template <class Address>
TOKENYARD_DEVICE uint32_t steps_of(Address at, uint32_t bytes) {
  return low_bits(at) | bytes;
}

}  // namespace pieces

/// Loads the first `bytes` of a piece, at most all; the others are zero.
template <uint32_t words, class Address>
TOKENYARD_DEVICE Piece<words> load_piece(Address from, uint32_t bytes) {
  const uint32_t steps = pieces::steps_of(from, bytes);
  if (steps % (4 * words) == 0) {
    if constexpr (words == 4) {
      return pieces::load_whole(from);
    } else {
      return std::bit_cast<Piece<2>>(load<Order::weak, Scope::gpu>(pieces::as<uint64_t>(from)));
    }
  }
  if (steps % 4 == 0) return pieces::load_steps<uint32_t, words>(from, bytes);
  if (steps % 2 == 0) return pieces::load_steps<uint16_t, words>(from, bytes);
  return pieces::load_steps<uint8_t, words>(from, bytes);
}

/// Stores the first `bytes` of a piece, at most all.
template <uint32_t words, class Address>
TOKENYARD_DEVICE void store_piece(Address to, const Piece<words>& piece, uint32_t bytes) {
  const uint32_t steps = pieces::steps_of(to, bytes);
  if (steps % (4 * words) == 0) {
    if constexpr (words == 4)
      pieces::store_whole(to, piece);
    else
      store<Order::weak, Scope::gpu>(pieces::as<uint64_t>(to), std::bit_cast<uint64_t>(piece));
  } else if (steps % 4 == 0) {
    pieces::store_steps<uint32_t>(to, piece, bytes);
  } else if (steps % 2 == 0) {
    pieces::store_steps<uint16_t>(to, piece, bytes);
  } else {
    pieces::store_steps<uint8_t>(to, piece, bytes);
  }
}

}  // namespace tokenyard::device_collectives
