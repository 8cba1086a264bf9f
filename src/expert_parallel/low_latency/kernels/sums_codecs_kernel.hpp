/// Formats of a partial sum. A warp holds a chunk of it, 256 channels, eight per lane; the piece
/// that a lane sends need not encode the channels that it holds. A warp has some chunks in hand at
/// once: a span.
///
///     kIsLogFmt            which of the two formats
///     kSpanChunks          chunks per span: instructions not specific to channels serve them all
///     kRowsAtOnce          rows of y that a lane of a sending block has in hand
///     kPiecesAChunk        sixteen-byte pieces per chunk
///     has_piece            returns whether this lane has a piece and the chunk exists
///     encode               called by all lanes: returns this lane's piece, whose first word is
///                          never kEmpty
///     kLanesShareScales    whether a lane's piece depends on values of other lanes, also of those
///                          without channels, which must then hold zeros
///     kHasRegisters        whether lanes have registers to spare for what only saves time
///     add                  called by all lanes: adds the chunk's values, weighted, to their sums
#pragma once

#include "expert_parallel/low_latency/kernels/logfmt.hpp"
#include "expert_parallel/low_latency/kernels/sums_kernel.hpp"

namespace tokenyard::low_latency {

/// Rounds to BF16, channels in place.
struct Bf16Codec {
  static constexpr bool kIsLogFmt = false;
  static constexpr uint32_t kSpanChunks = kBf16SpanChunks;
  static constexpr uint32_t kRowsAtOnce = 4;
  static constexpr uint32_t kPiecesAChunk = kWarpLanes;
  static constexpr bool kLanesShareScales = false;
  static constexpr bool kHasRegisters = true;

  TOKENYARD_DEVICE static bool has_piece(const CombineParams& params, uint32_t chunk) {
    return chunk * kWarpLanes + warp::lane() < params.pieces;
  }
  /// The conversion turns NaNs into 0x7fff.
  TOKENYARD_DEVICE static Bytes16 encode(const LaneSums& sums) { return sums.rounded(); }
  TOKENYARD_DEVICE static void add(LaneSums& sums, const Bytes16& piece, float weight) {
    sums.add(piece, weight);
  }
};

/// Ten bits per value: a sign, and the logarithm of the magnitude on a scale shared by 128
/// channels. Two thirds of the bytes of BF16, at a relative error of up to 2.2 % (see LogScale). In
/// a chunk, the codes of eight lanes fill five pieces, and one more piece holds the two scales.
struct LogFmtCodec {
  static constexpr bool kIsLogFmt = true;
  static constexpr uint32_t kSpanChunks = kLogFmtSpanChunks;  ///< most of its code is specific to
                                                              ///< channels
  static constexpr uint32_t kRowsAtOnce = 2;                  ///< each has its own inlined encoding
  static constexpr uint32_t kPiecesAChunk = kLogFmtPiecesAChunk;
  static constexpr bool kLanesShareScales = true;
  static constexpr bool kHasRegisters = false;

  TOKENYARD_DEVICE static bool has_piece(const CombineParams& params, uint32_t chunk) {
    return warp::lane() < kPiecesAChunk && chunk < params.chunks();
  }

  TOKENYARD_DEVICE static Bytes16 encode(const LaneSums& sums) {
    const LogScale scale = scale_of_group(sums);
    uint32_t codes[kCodes];
    for (uint32_t i = 0; i < kCodes; ++i) codes[i] = scale.encode(sums.value(i));
    const Bytes16 packed = gather(words_of_lane(codes));
    Bytes16 scales;
    for (uint32_t half = 0; half < 2; ++half) {
      scales.word[2 * half] =
          warp::shuffle(std::bit_cast<uint32_t>(scale.low), half * kLanesAGroup);
      scales.word[2 * half + 1] =
          warp::shuffle(std::bit_cast<uint32_t>(scale.step), half * kLanesAGroup);
    }
    return warp::lane() == kScalesLane ? scales : packed;
  }

  TOKENYARD_DEVICE static void add(LaneSums& sums, const Bytes16& piece, float weight) {
    uint32_t scales[4];
    for (uint32_t i = 0; i < 4; ++i) scales[i] = warp::shuffle(piece.word[i], kScalesLane);
    const bool upper = warp::lane() >= kLanesAGroup;
    const LogScale scale{std::bit_cast<float>(upper ? scales[2] : scales[0]),
                         std::bit_cast<float>(upper ? scales[3] : scales[1])};
    const LaneWords words = scatter(piece);
    const uint64_t low = static_cast<uint64_t>(words.word[1]) << 32 | words.word[0];
    for (uint32_t i = 0; i < kCodes; ++i) {
      const uint32_t at = i * kLogFmtBits;
      uint64_t bits = at < 64 ? low >> at : words.word[2] >> (at - 64);
      if (at < 64 && at + kLogFmtBits > 64) bits |= uint64_t{words.word[2]} << (64 - at);
      sums.add_value(i, scale.decode(static_cast<uint32_t>(bits) & kLogFmtMask), weight);
    }
  }

 private:
  static constexpr uint32_t kCodes = 8, kLanesAGroup = 16;
  static constexpr uint32_t kLanesPacked = 8, kPiecesPacked = 5;  ///< eight lanes fill five pieces
  static constexpr uint32_t kScalesLane = kPiecesAChunk - 1;

  /// A lane's eighty bits. Of a pair of lanes, the even one holds words 0 to 2 of their five, the
  /// odd one words 3 and 4.
  struct LaneWords {
    uint32_t word[3];
  };

  TOKENYARD_DEVICE static LogScale scale_of_group(const LaneSums& sums) {
    LogRange range;
    for (uint32_t i = 0; i < kCodes; ++i) range.include(sums.value(i));
    for (uint32_t mask = kLanesAGroup / 2; mask != 0; mask /= 2) {
      range.largest = std::fmax(range.largest, warp::shuffle_xor(range.largest, mask));
      range.smallest = std::fmin(range.smallest, warp::shuffle_xor(range.smallest, mask));
      range.broken |= warp::shuffle_xor(range.broken, mask);
    }
    return LogScale::of(range);
  }

  TOKENYARD_DEVICE static LaneWords words_of_lane(const uint32_t (&codes)[kCodes]) {
    uint64_t low = 0;
    for (uint32_t i = 0; i < 7; ++i) low |= static_cast<uint64_t>(codes[i]) << i * kLogFmtBits;
    const uint32_t first = static_cast<uint32_t>(low), second = static_cast<uint32_t>(low >> 32);
    const uint32_t third = codes[6] >> 4 | codes[7] << 6;
    const uint32_t of_odd = warp::shuffle_xor(first, 1);
    if (warp::lane() % 2 == 0) return {{first, second, third | of_odd << 16}};
    return {{first >> 16 | second << 16, second >> 16 | third << 16, 0}};
  }

  /// Returns this lane's piece of its eight lanes' twenty words.
  TOKENYARD_DEVICE static Bytes16 gather(const LaneWords& words) {
    const uint32_t group = warp::lane() / kPiecesPacked, place = warp::lane() % kPiecesPacked;
    Bytes16 piece;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t word = place * 4 + i, pair = word / 5, kind = word % 5;
      const uint32_t from = group * kLanesPacked + pair * 2 + (kind >= 3 ? 1 : 0);
      const uint32_t first = warp::shuffle(words.word[0], from);
      const uint32_t second = warp::shuffle(words.word[1], from);
      const uint32_t third = warp::shuffle(words.word[2], from);
      const uint32_t which = kind >= 3 ? kind - 3 : kind;
      piece.word[i] = which == 0 ? first : which == 1 ? second : third;
    }
    return piece;
  }

  /// Returns this lane's eighty bits from the pieces of its eight lanes.
  TOKENYARD_DEVICE static LaneWords scatter(const Bytes16& piece) {
    const uint32_t group = warp::lane() / kLanesPacked, inner = warp::lane() % kLanesPacked;
    const bool odd = inner % 2 != 0;
    uint32_t found[3];
    for (uint32_t i = 0; i < 3; ++i) {
      const uint32_t word = inner / 2 * 5 + (odd ? 2 : 0) + i;
      const uint32_t from = group * kPiecesPacked + word / 4;
      uint32_t whole[4];
      for (uint32_t k = 0; k < 4; ++k) whole[k] = warp::shuffle(piece.word[k], from);
      const uint32_t half = word % 4;
      found[i] = half == 0 ? whole[0] : half == 1 ? whole[1] : half == 2 ? whole[2] : whole[3];
    }
    if (!odd) return {{found[0], found[1], found[2] & 0xffff}};
    return {{found[0] >> 16 | found[1] << 16, found[1] >> 16 | found[2] << 16, found[2] >> 16}};
  }
};

}  // namespace tokenyard::low_latency
