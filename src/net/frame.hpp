/// Reading a frame from whoever is at the other end, who may be anybody: the header, of a length
/// that never changes, is judged before a byte after it is read or room for one is made.
///
/// Two kinds of frames exist: sealed ones after a handshake (sealed_frame.hpp), and those of a
/// World's mesh, which carry their session instead (fabric/tcp/frame.hpp).
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
      /// Returns how many bytes follow this header. Throws ProtocolError where it is not taken.
      { decoder.judge(header) } -> std::same_as<size_t>;
      /// Takes what followed the header judged last. Throws ProtocolError.
      decoder.open(std::move(rest));
    };

template <class Decoder>
using FrameOf = decltype(std::declval<Decoder&>().open(std::vector<std::byte>()));

/// Throws ProtocolError, or std::system_error when the connection ends.
template <FrameDecoder Decoder>
awaitable<FrameOf<Decoder>> read_frame(Stream& stream, Decoder& decoder) {
  std::array<std::byte, Decoder::kHeaderBytes> header;
  co_await stream.read_bytes(header);
  std::vector<std::byte> rest(decoder.judge(header));
  co_await stream.read_bytes(rest);
  co_return decoder.open(std::move(rest));
}

}  // namespace tokenyard::net
