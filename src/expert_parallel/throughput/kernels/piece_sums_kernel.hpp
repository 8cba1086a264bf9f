/// Sixteen bytes of a row as numbers, per element type that can be summed. Sums are fp32 whatever
/// the type, and are rounded to it once, to nearest even.
#pragma once

#include <bit>

#include "device/device.hpp"

namespace tokenyard::throughput {

struct Bf16Piece {
  static constexpr uint32_t kValues = 8;
  TOKENYARD_DEVICE static float value(const Bytes16& piece, uint32_t i) {
    const uint32_t word = piece.word[i / 2];
    return to_float(BFloat16{static_cast<uint16_t>(i % 2 == 0 ? word & 0xffff : word >> 16)});
  }
  TOKENYARD_DEVICE static uint32_t rounded(const float* sums, uint32_t word) {
    return to_bfloat16_pair(sums[2 * word], sums[2 * word + 1]);
  }
};

struct Fp16Piece {
  static constexpr uint32_t kValues = 8;
  TOKENYARD_DEVICE static float value(const Bytes16& piece, uint32_t i) {
    const uint32_t word = piece.word[i / 2];
    return to_float(Float16{static_cast<uint16_t>(i % 2 == 0 ? word & 0xffff : word >> 16)});
  }
  TOKENYARD_DEVICE static uint32_t rounded(const float* sums, uint32_t word) {
    return to_float16_pair(sums[2 * word], sums[2 * word + 1]);
  }
};

struct Fp32Piece {
  static constexpr uint32_t kValues = 4;
  TOKENYARD_DEVICE static float value(const Bytes16& piece, uint32_t i) {
    return std::bit_cast<float>(piece.word[i]);
  }
  TOKENYARD_DEVICE static uint32_t rounded(const float* sums, uint32_t word) {
    return std::bit_cast<uint32_t>(sums[word]);
  }
};

/// Sums of one piece, in registers.
template <class Piece>
struct PieceSums {
  float sums[Piece::kValues];

  TOKENYARD_DEVICE void clear() {
    for (float& sum : sums) sum = 0;
  }
  TOKENYARD_DEVICE void add(const Bytes16& piece) {
    for (uint32_t i = 0; i < Piece::kValues; ++i) sums[i] += Piece::value(piece, i);
  }
  TOKENYARD_DEVICE void add_scaled(const Bytes16& piece, float factor) {
    for (uint32_t i = 0; i < Piece::kValues; ++i) sums[i] += Piece::value(piece, i) * factor;
  }
  TOKENYARD_DEVICE Bytes16 rounded() const {
    Bytes16 piece;
    for (uint32_t word = 0; word < 4; ++word) piece.word[word] = Piece::rounded(sums, word);
    return piece;
  }
};

}  // namespace tokenyard::throughput
