/// The frames that carry everything ranks send one another over TCP. Pure: bytes in, bytes out. The
/// other end may be any program, so a header is validated before a byte after it is read or memory
/// for it is allocated.
///
/// On the wire, little-endian: a header of 48 bytes (its fields in order; no later version may move
/// the first two, magic and version), then `what`, then the payload.
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
/// Limit on `what` and on the payload, in bytes, of a connection that has not identified itself.
inline constexpr uint32_t kIntroductionMax = 4096;
inline constexpr uint32_t kWhatMax = 4096;
inline constexpr uint64_t kPayloadMax = uint64_t{64} << 20;

enum class FrameKind : uint16_t {
  hello = 1,      ///< the sender introduces itself
  progress,       ///< rank 0 to a waiting rank: which ranks are missing
  connect_reply,  ///< rank 0 to a waiting rank: all ranks are here, and where they listen
  refusal,        ///< why the receiver may not take part
  collective,     ///< a Message
  rebuild,        ///< a Message
  goodbye,        ///< the last frame of a rank that leaves
};

struct FrameHeader {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;  ///< a FrameKind
  uint64_t job = 0;   ///< net::job_number of the name until `connect_reply`, then the session
  uint32_t rank = 0;  ///< sender's rank
  uint32_t size = 0;  ///< number of ranks, as the sender knows it
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

/// The frames that a receiver accepts from a connection.
struct FrameRules {
  std::optional<uint64_t> job;  ///< accepted job or session; if empty, the hello's name decides
  uint32_t what_max = kIntroductionMax;
  uint64_t payload_max = kIntroductionMax;
};

/// Returns the frame's bytes, with the lengths in the header filled in.
std::vector<std::byte> encode(const Frame& frame);
FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> bytes);
/// Returns why a frame with this header is rejected, or nothing if it is accepted.
std::optional<std::string> objection(const FrameHeader& header, const FrameRules& rules);

/// Decodes frames for net::read_frame.
class FrameDecoder {
 public:
  static constexpr size_t kHeaderBytes = tcp::kHeaderBytes;

  explicit FrameDecoder(const FrameRules& rules) : rules_(rules) {}
  /// Returns how many bytes follow this header. Throws net::ProtocolError if the rules reject it.
  size_t judge(std::span<const std::byte, kHeaderBytes> bytes);
  /// Returns the frame of the header judged last, from the bytes that followed it.
  Frame open(std::vector<std::byte> rest) const;

 private:
  FrameRules rules_;
  FrameHeader header_;
};

}  // namespace tokenyard::tcp
