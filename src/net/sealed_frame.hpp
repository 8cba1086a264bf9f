/// Frames after the handshake. Each carries a seal, so a frame cannot be injected, dropped,
/// reordered or repeated unnoticed. Pure: bytes in, bytes out. The data frames of collectives have
/// no seal of their own (docs/decisions/authentication.md).
///
/// On the wire, little-endian: payload bytes 4, kind 2, unused 2; the payload; the first 16 bytes
/// of an HMAC-SHA256 over the frame's number, the header and the payload. Frames are numbered from
/// 0 per direction, and the number is not sent. Invariant: sealer and opener count alike, so a seal
/// verifies only at the position where it was made.
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
  /// Returns the whole frame. Throws InternalError if the payload is too long.
  std::vector<std::byte> seal(uint16_t kind, std::span<const std::byte> payload);

 private:
  Key key_;
  uint64_t number_ = 0;
};

class Opener {
 public:
  explicit Opener(const Key& key) : key_(key) {}
  /// Returns the number of bytes after this header. Throws ProtocolError, before anything is
  /// allocated, if they exceed the limit.
  size_t judge(std::span<const std::byte, kFrameHeaderBytes> header);
  /// Verifies and returns the frame. Throws ProtocolError if the seal does not match.
  SealedFrame open(std::vector<std::byte> rest);

 private:
  Key key_;
  uint64_t number_ = 0;
  std::array<std::byte, kFrameHeaderBytes> header_{};
};

}  // namespace tokenyard::net
