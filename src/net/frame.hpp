/// Reads one frame from an untrusted peer. The header has a fixed length and is judged before any
/// further byte is read or memory allocated.
///
/// Sealed frames, which follow a handshake, are read here (sealed_frame.hpp). The data frames of
/// collectives are not (collectives/interfaces/frame.hpp): they follow one sealed ConnectRequest
/// and have no seal of their own (docs/decisions/authentication.md).
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "net/stream.hpp"

namespace tokenyard::net {

template <class Decoder>
concept FrameDecoder =
    requires(Decoder decoder, std::span<const std::byte, Decoder::kHeaderBytes> header,
             std::vector<std::byte> rest) {
      /// Returns the number of bytes after this header. Throws ProtocolError if the header is
      /// invalid.
      { decoder.judge(header) } -> std::same_as<size_t>;
      /// Decodes the bytes that followed the last header. Throws ProtocolError.
      decoder.open(std::move(rest));
    };

template <class Decoder>
using FrameOf = decltype(std::declval<Decoder&>().open(std::vector<std::byte>()));

/// Throws ProtocolError if the peer breaks the protocol, std::system_error if the connection ends.
template <FrameDecoder Decoder>
awaitable<FrameOf<Decoder>> read_frame(Stream& stream, Decoder& decoder) {
  std::array<std::byte, Decoder::kHeaderBytes> header;
  co_await stream.read_bytes(header);
  std::vector<std::byte> rest(decoder.judge(header));
  co_await stream.read_bytes(rest);
  co_return decoder.open(std::move(rest));
}

}  // namespace tokenyard::net
