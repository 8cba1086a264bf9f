/// Position of a staged partial sum in its place, in pieces, by format.
///
///     BF16      0 ........................ n
///     LogFMT        first ................... first + m
///
/// Each format has a piece where the other has none: BF16 its first, LogFMT its last. So a row in
/// the format that is not awaited is never complete, and reveals itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "expert_parallel/low_latency/kernels/logfmt.hpp"

namespace tokenyard::low_latency {

struct SumsLayout {
  uint32_t bf16_pieces, logfmt_pieces;
  uint32_t logfmt_first;

  static SumsLayout of(uint32_t hidden) {
    constexpr uint32_t kChannelsAPiece = 8, kChunkChannels = 256;
    const uint32_t bf16 = hidden / kChannelsAPiece;
    const uint32_t logfmt = (hidden + kChunkChannels - 1) / kChunkChannels * kLogFmtPiecesAChunk;
    return {bf16, logfmt, whole_lines(bf16 < logfmt ? 1 : bf16 - logfmt + 1)};
  }
  uint32_t first(bool logfmt) const { return logfmt ? logfmt_first : 0; }
  /// Returns the pieces of a place, in whole cache lines.
  uint32_t staged_pieces() const {
    return whole_lines(std::max(bf16_pieces, logfmt_first + logfmt_pieces));
  }
  /// Returns the offset from the start of a row in this format to a piece that only the other
  /// format has.
  int32_t only_in_other(bool logfmt) const {
    const uint32_t last_of_logfmt = logfmt_first + logfmt_pieces - 1;
    return logfmt ? -static_cast<int32_t>(logfmt_first) : static_cast<int32_t>(last_of_logfmt);
  }

 private:
  static uint32_t whole_lines(uint32_t pieces) { return (pieces + 7) / 8 * 8; }
};

}  // namespace tokenyard::low_latency
