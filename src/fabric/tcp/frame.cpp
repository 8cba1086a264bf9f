#include "fabric/tcp/frame.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/fnv1a.hpp"
#include "base/little_endian.hpp"

namespace tokenyard::tcp {

namespace {

/// The header's fields in their order on the wire, for reading and for writing alike.
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

uint64_t job_number(std::string_view name) {
  return fnv1a(std::as_bytes(std::span(name)));  // Told apart, not kept secret.
}

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

void PayloadWriter::number(uint64_t value) {
  const auto bytes = little_endian(value);
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void PayloadWriter::text(std::string_view text) {
  number(text.size());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), begin, begin + text.size());
}

uint64_t PayloadReader::number() {
  if (rest_.size() < sizeof(uint64_t)) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  return take_number<uint64_t>(rest_);
}

std::string PayloadReader::text() {
  const uint64_t bytes = number();
  if (bytes > rest_.size()) {
    ok_ = false;
    rest_ = {};
    return "";
  }
  std::string text(reinterpret_cast<const char*>(rest_.data()), bytes);
  rest_ = rest_.subspan(bytes);
  return text;
}

}  // namespace tokenyard::tcp
