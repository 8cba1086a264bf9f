#pragma once

#include "device/host/warp.hpp"
#include "device/matrix.hpp"
#include "device/numbers.hpp"

namespace tokenyard {

namespace host_body {

/// Two 32-bit words from each lane, by lane.
struct WarpPairs {
  uint32_t of[kWarpLanes][2];

  TOKENYARD_DEVICE WarpPairs(WarpWord word, uint32_t first, uint32_t second) {
    const uint64_t* const values = meet(word, uint64_t{second} << 32 | first, warp::kAllLanes);
    for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      of[lane][0] = static_cast<uint32_t>(values[lane]);
      of[lane][1] = static_cast<uint32_t>(values[lane] >> 32);
    }
  }
};

/// Returns the dot product of two pairs of BF16.
TOKENYARD_DEVICE float pair_product(uint32_t a, uint32_t b) {
  const auto half = [](uint32_t bits) { return to_float(BFloat16{static_cast<uint16_t>(bits)}); };
  return half(a) * half(b) + half(a >> 16) * half(b >> 16);
}

}  // namespace host_body

namespace warp {

TOKENYARD_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  using host_body::WarpPairs;
  const WarpPairs left(WarpWord::multiply_add, a[0], a[1]);   // Columns 0 to 7 of a.
  const WarpPairs right(WarpWord::multiply_add, a[2], a[3]);  // Columns 8 to 15.
  const WarpPairs columns(WarpWord::multiply_add, b[0], b[1]);
  const uint32_t row = lane() / 4, column = lane() % 4 * 2;
  for (uint32_t i = 0; i < 4; ++i)
    for (uint32_t t = 0; t < 4; ++t) {
      const uint32_t from = row * 4 + t, with = (column + i % 2) * 4 + t;
      c[i] += host_body::pair_product(left.of[from][i / 2], columns.of[with][0]) +
              host_body::pair_product(right.of[from][i / 2], columns.of[with][1]);
    }
}

TOKENYARD_DEVICE void load_transposed(uint32_t (&columns)[4], const Bytes16* row) {
  const uint64_t* const rows =
      host_body::meet(WarpWord::load_transposed, host_body::pack(row), kAllLanes);
  const Bytes16* of[2 * 4];
  for (uint32_t i = 0; i < 8; ++i)
    of[i] = host_body::unpack<const Bytes16*>(rows[i / 2 * 8 + lane() % 4 * 2 + i % 2]);
  const uint32_t column = lane() / 4;
  const auto element = [&](uint32_t i) {
    return of[i]->word[column / 2] >> (column % 2 * 16) & 0xffff;
  };
  for (uint32_t i = 0; i < 4; ++i) columns[i] = element(2 * i) | element(2 * i + 1) << 16;
}

}  // namespace warp

}  // namespace tokenyard
