#include "fabric/tcp/frame.hpp"

#include <fmt/format.h>

#include <cstring>

#include "base/fnv1a.hpp"

namespace tokenyard::tcp {

namespace {

template <class Number>
void put(std::byte*& at, Number value) {
  for (size_t byte = 0; byte < sizeof(Number); ++byte) {
    *at++ = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * byte));
  }
}

template <class Number>
void get(const std::byte*& at, Number& value) {
  uint64_t bits = 0;
  for (size_t byte = 0; byte < sizeof(Number); ++byte) {
    bits |= static_cast<uint64_t>(*at++) << (8 * byte);
  }
  value = static_cast<Number>(bits);
}

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
  std::byte* at = bytes.data();
  each_field(header, [&](auto field) { put(at, field); });
  if (!frame.what.empty()) std::memcpy(at, frame.what.data(), frame.what.size());
  at += frame.what.size();
  if (!frame.payload.empty()) std::memcpy(at, frame.payload.data(), frame.payload.size());
  return bytes;
}

FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  FrameHeader header;
  const std::byte* at = bytes.data();
  each_field(header, [&](auto& field) { get(at, field); });
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
  std::byte bytes[sizeof value];
  std::byte* at = bytes;
  put(at, value);
  bytes_.insert(bytes_.end(), bytes, at);
}

void PayloadWriter::text(std::string_view text) {
  number(text.size());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), begin, begin + text.size());
}

uint64_t PayloadReader::number() {
  uint64_t value = 0;
  if (rest_.size() < sizeof value) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  const std::byte* at = rest_.data();
  get(at, value);
  rest_ = rest_.subspan(sizeof value);
  return value;
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
