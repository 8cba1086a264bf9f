/// Everything that ranks say to one another over TCP is one of these frames. Pure: bytes in, bytes
/// out. Whoever is at the other end may be anybody, so a header is judged before a byte after it is
/// read or room for one is made.
///
/// On the wire, little-endian: a header of 48 bytes (in the order of its fields, magic and version
/// first, which no later version may move), then `what`, then the payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/job_number.hpp"
#include "net/payload.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::tcp {

inline constexpr uint32_t kMagic = 0x44525954;  // "TYRD"
inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kHeaderBytes = 48;
/// Until a connection has said who it is, it may say this much and no more.
inline constexpr uint32_t kIntroductionMax = 4096;
inline constexpr uint32_t kWhatMax = 4096;
inline constexpr uint64_t kPayloadMax = uint64_t{64} << 20;

enum class FrameKind : uint16_t {
  hello = 1,      ///< who I am
  progress,       ///< rank 0 to a waiting rank: who has not come yet
  connect_reply,  ///< rank 0 to a waiting rank: everybody has come, and where they listen
  refusal,        ///< why you may not take part
  collective,     ///< a Message
  rebuild,        ///< a Message
  goodbye,        ///< the last frame of a rank that leaves
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;  ///< a FrameKind
  uint64_t job =
      0;  ///< net::job_number of the name until `connect_reply`; then the session of this world
  uint32_t rank = 0;  ///< the sender's
  uint32_t size = 0;  ///< ranks, as the sender knows
  uint32_t generation = 0;
  uint32_t what_bytes = 0;
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0;
};

struct Frame {
  FrameHeader header;
  std::string what;
  std::vector<std::byte> payload;
};

/// What a receiver takes from a connection.
struct FrameRules {
  std::optional<uint64_t> job;  ///< nothing: any, to be judged by its name
  uint32_t what_max = kIntroductionMax;
  uint64_t payload_max = kIntroductionMax;
};

/// Fills in the lengths.
std::vector<std::byte> encode(const Frame& frame);
FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> bytes);
/// Why a frame with this header is not taken, if it is not.
std::optional<std::string> objection(const FrameHeader& header, const FrameRules& rules);

/// For net::read_frame.
class FrameDecoder {
 public:
  static constexpr size_t kHeaderBytes = tcp::kHeaderBytes;

  explicit FrameDecoder(const FrameRules& rules) : rules_(rules) {}
  /// Returns how many bytes follow this header. Throws net::ProtocolError if the rules forbid it.
  size_t judge(std::span<const std::byte, kHeaderBytes> bytes);
  /// Takes what followed the header judged last.
  Frame open(std::vector<std::byte> rest) const;

 private:
  FrameRules rules_;
  FrameHeader header_;
};

}  // namespace tokenyard::tcp
