/// What processes say to one another after the handshake: frames that carry a seal, so that nothing
/// can be put in between, left out or said twice. Pure: bytes in, bytes out.
///
/// On the wire, little-endian: payload bytes 4, kind 2, unused 2; the payload; 16 bytes of an
/// HMAC-SHA256 over the frame's number and all of that. Frames are counted from 0, and the number
/// itself is not sent.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "net/key.hpp"

namespace tokenyard::net {

struct SealedFrame {
  uint16_t kind = 0;
  std::vector<std::byte> payload;
};

inline constexpr size_t kFrameHeaderBytes = 8;
inline constexpr size_t kSealBytes = 16;
inline constexpr uint32_t kFramePayloadMax = 4u << 20;

class Sealer {
 public:
  explicit Sealer(const Key& key) : key_(key) {}
  /// The whole frame. Throws InternalError if the payload is too long.
  std::vector<std::byte> seal(uint16_t kind, std::span<const std::byte> payload);

 private:
  Key key_;
  uint64_t number_ = 0;
};

class Opener {
 public:
  static constexpr size_t kHeaderBytes = kFrameHeaderBytes;

  explicit Opener(const Key& key) : key_(key) {}
  /// How many bytes follow this header. Throws ProtocolError if they are too many: before room is
  /// made.
  size_t judge(std::span<const std::byte, kFrameHeaderBytes> header);
  /// Takes what followed the header judged last. Throws ProtocolError if the seal is broken.
  SealedFrame open(std::vector<std::byte> rest);

 private:
  Key key_;
  uint64_t number_ = 0;
  std::array<std::byte, kFrameHeaderBytes> header_{};
};

}  // namespace tokenyard::net
