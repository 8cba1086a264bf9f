#include "net/sealed_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/little_endian.hpp"
#include "net/handshake.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::net {

std::vector<std::byte> Sealer::seal(uint16_t kind, std::span<const std::byte> payload) {
  if (payload.size() > kFramePayloadMax) {
    throw InternalError(fmt::format("a control frame has {} bytes; the limit is {}", payload.size(),
                                    kFramePayloadMax));
  }
  const auto header = little_endian(payload.size() | uint64_t{kind} << 32);
  std::vector<std::byte> frame;
  frame.reserve(header.size() + payload.size() + kSealBytes);
  frame.insert(frame.end(), header.begin(), header.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  const Digest seal = key_.sign({little_endian(number_++), frame});
  frame.insert(frame.end(), seal.begin(), seal.begin() + kSealBytes);
  return frame;
}

size_t Opener::judge(std::span<const std::byte, kFrameHeaderBytes> header) {
  std::ranges::copy(header, header_.begin());
  std::span<const std::byte> from(header);
  const size_t payload = take_number<uint32_t>(from);
  if (payload > kFramePayloadMax) {
    throw ProtocolError(fmt::format("announced a frame of {} bytes, over the limit of {}", payload,
                                    kFramePayloadMax));
  }
  return payload + kSealBytes;
}

SealedFrame Opener::open(std::vector<std::byte> rest) {
  const size_t payload = rest.size() - kSealBytes;
  const Digest seal =
      key_.sign({little_endian(number_++), header_, std::span(rest).first(payload)});
  if (!same(std::span(rest).subspan(payload), std::span(seal).first(kSealBytes))) {
    throw ProtocolError("sent a frame whose seal does not match");
  }
  rest.resize(payload);
  auto kind = std::span<const std::byte>(header_).subspan(sizeof(uint32_t));
  return {take_number<uint16_t>(kind), std::move(rest)};
}

}  // namespace tokenyard::net
