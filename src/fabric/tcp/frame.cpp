#include "fabric/tcp/frame.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/little_endian.hpp"

namespace tokenyard::tcp {

namespace {

/// Visits the header's fields in wire order, for both reading and writing.
template <class Header, class Visit>
void each_field(Header& header, Visit visit) {
  visit(header.magic);
  visit(header.version);
  visit(header.kind);
  visit(header.job);
  visit(header.rank);
  visit(header.size);
  visit(header.generation);
  visit(header.what_bytes);
  visit(header.sequence);
  visit(header.payload_bytes);
}

}  // namespace

std::vector<std::byte> encode(const Frame& frame) {
  FrameHeader header = frame.header;
  header.what_bytes = static_cast<uint32_t>(frame.what.size());
  header.payload_bytes = frame.payload.size();
  std::vector<std::byte> bytes(kHeaderBytes + frame.what.size() + frame.payload.size());
  std::span<std::byte> to(bytes);
  each_field(header, [&](auto field) { put_number(to, field); });
  std::ranges::copy(std::as_bytes(std::span(frame.what)), to.begin());
  std::ranges::copy(frame.payload, to.subspan(frame.what.size()).begin());
  return bytes;
}

FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  FrameHeader header;
  std::span<const std::byte> from(bytes);
  each_field(header, [&]<class Number>(Number& field) { field = take_number<Number>(from); });
  return header;
}

std::optional<std::string> objection(const FrameHeader& header, const FrameRules& rules) {
  if (header.magic != kMagic) return "does not speak Tokenyard's protocol";
  if (header.version != kVersion) {
    return fmt::format("speaks version {} of the protocol, not {}", header.version, kVersion);
  }
  if (rules.job && header.job != *rules.job) return "belongs to another job or session";
  const auto last = static_cast<uint16_t>(FrameKind::goodbye);
  if (header.kind == 0 || header.kind > last) {
    return fmt::format("sent a frame of unknown kind {}", header.kind);
  }
  if (header.what_bytes > rules.what_max || header.payload_bytes > rules.payload_max) {
    return fmt::format("sent a frame of {} + {} bytes, over the limit of {} + {}",
                       header.what_bytes, header.payload_bytes, rules.what_max, rules.payload_max);
  }
  return std::nullopt;
}

size_t FrameDecoder::judge(std::span<const std::byte, kHeaderBytes> bytes) {
  header_ = decode_header(bytes);
  if (const auto why = objection(header_, rules_)) throw net::ProtocolError(*why);
  return header_.what_bytes + header_.payload_bytes;
}

Frame FrameDecoder::open(std::vector<std::byte> rest) const {
  const auto what_end = rest.begin() + header_.what_bytes;
  Frame frame{header_, std::string(header_.what_bytes, '\0'), {}};
  std::copy(rest.begin(), what_end, std::as_writable_bytes(std::span(frame.what)).begin());
  rest.erase(rest.begin(), what_end);
  frame.payload = std::move(rest);
  return frame;
}

}  // namespace tokenyard::tcp
