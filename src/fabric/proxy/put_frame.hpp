/// Frames between the proxies of two ranks, over TCP. A header of 64 bytes, little-endian, and
/// behind that of a put its payload. Pure: bytes in, bytes out.
///
///     0 kind 1 (low half) and origin (high half) | inline bytes 1 | queue 2 | epoch 4 | key 4
///    12 payload bytes 4
///    16 offset 8 | sequence 4 | turn 4
///    32 put:            the whole put's offset 8 and bytes 4, zero 20
///       put_inline:     bytes 32, zero behind those that count
///       signal, settle: addend 8 (settle: zero), then counts 6 x 4
///       refusal:        check 4, region 4, expected 8, seen 8, zero 8
///       taken, closed:  path 4, life 4, zero 24
///       given_up:       zero 32
///
/// A put is one frame or several, each of a part of it, over any of the peer's paths. A path is a
/// connection, and delivers its frames in order; `sequence` numbers them. A signal, or the question
/// whether a queue has settled, carries per path the number of the queue's put frames before it,
/// and takes effect once that many have landed from each.
///
/// Between ranks with several interfaces a path may be lost and made anew (its next life). The
/// frames of a path that the peer has taken are acknowledged; the others wait:
///
///     one end    loses path p in life l, closes it; counts the frames n that it has taken
///                closed(p, l, n)   over any other path, or later         ---->
///     other end  closes it, too; frames before n were taken; sends the others again, and counts
///                them by their first path (origin)
///                closed(p, l, m)                                         <----
///
/// So a frame is sent again only after the peer has closed the path that carried it, and knows that
/// it was not taken. `closed` itself may come twice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/network_request.hpp"

namespace tokenyard {

inline constexpr uint32_t kPathsMax = 6;  ///< per peer
inline constexpr size_t kPutFrameBytes = 64;

enum class PutFrameKind : uint8_t {
  put = 1,
  put_inline,
  signal,
  settle,    ///< asks for `settled`
  settled,   ///< all of the queue's requests before `turn` have taken effect
  refusal,   ///< a request of the queue was refused
  taken,     ///< so many frames of a path (`turn`) have been taken
  closed,    ///< a path is closed; so many frames of it (`turn`) had been taken
  given_up,  ///< the first frame of a connection: nothing of the peer is taken any more
};

/// Per path, the number of a queue's put frames.
using PathCounts = std::array<uint32_t, kPathsMax>;

struct PutFrame {
  PutFrameKind kind = PutFrameKind::put;
  uint8_t origin =
      0;  ///< put, put_inline: 0: counted by the path that carries it; else by path - 1
  uint8_t inline_bytes = 0;
  uint16_t queue = 0;  ///< number among the queues between the two ranks
  uint32_t epoch = 0;  ///< of the world
  MemoryKey key = 0;
  uint32_t bytes = 0;  ///< of payload
  uint64_t offset = 0;
  uint32_t sequence = 0;
  uint32_t turn = 0;  ///< settle, settled: the count of requests that the question covers; taken,
                      ///< closed: of frames
  // The kind says which of these are used.
  uint64_t whole_offset = 0;
  uint32_t whole_bytes = 0;
  std::array<std::byte, kNetworkInlineMax> inlined{};
  uint64_t addend = 0;
  PathCounts counts{};
  NetworkCheck check = NetworkCheck::none;
  NetworkRefusal refusal{};
  uint32_t path = 0, life = 0;

  bool operator==(const PutFrame&) const;
};

std::array<std::byte, kPutFrameBytes> encode(const PutFrame& frame);
/// Accepts exactly what `encode` returns, of frames whose parts lie within the whole. Throws
/// net::ProtocolError.
PutFrame decode_put_frame(std::span<const std::byte, kPutFrameBytes> bytes);

}  // namespace tokenyard
