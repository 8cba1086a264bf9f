#include "collectives/transports/connect_request.hpp"

#include <algorithm>

#include "base/little_endian.hpp"

namespace tokenyard::collectives {

namespace {

constexpr uint32_t kMagic = 0x49575954;  // "TYWI"
constexpr uint16_t kVersion = 1;
constexpr size_t kFieldBytes = kConnectRequestBytes - sizeof(net::Digest);

struct Prefix {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
};

/// Visits the fields in their order on the wire, little-endian; for reading and writing alike.
void each_field(auto& prefix, auto& connect_request, auto visit) {
  visit(prefix.magic);
  visit(prefix.version);
  visit(connect_request.kind);
  visit(connect_request.channel.lane);
  visit(connect_request.channel.epoch);
  visit(connect_request.channel.group);
  visit(connect_request.channel.initiator.slot);
  visit(connect_request.channel.initiator.incarnation);
  visit(connect_request.channel.acceptor.slot);
  visit(connect_request.channel.acceptor.incarnation);
  visit(connect_request.bytes);
  visit(connect_request.file);
  visit(connect_request.stripe);
  visit(connect_request.stripes);
  visit(connect_request.nonce);
}
static_assert(kFieldBytes == 4 + 2 + 1 + 1 + 2 * 8 + 2 * (4 + 8) + 2 * 8 + 2 * 4 + 8,
              "the seal must cover all fields that each_field visits");

}  // namespace

net::Key wire_key(const std::string& secret, const std::string& job) {
  return net::Key(secret, "tokenyard wire").derive("job", {net::as_bytes(job)});
}

std::vector<std::byte> encode(const ConnectRequest& connect_request, const net::Key& key) {
  const auto words = net::as_bytes(connect_request.words)
                         .first(std::min(connect_request.words.size(), kConnectRequestWordsMax));
  std::vector<std::byte> bytes(kConnectRequestBytes + words.size());
  const Prefix prefix;
  std::span<std::byte> to(bytes);
  each_field(prefix, connect_request, [&](auto field) { put_number(to, field); });
  const net::Digest seal = key.sign({std::span(bytes).first(kFieldBytes), words});
  std::copy(seal.begin(), seal.end(), bytes.begin() + kFieldBytes);
  std::copy(words.begin(), words.end(), bytes.begin() + kConnectRequestBytes);
  return bytes;
}

std::optional<ConnectRequest> decode_connect_request(std::span<const std::byte> bytes,
                                                     const net::Key& key) {
  if (bytes.size() < kConnectRequestBytes) return std::nullopt;
  const auto words = bytes.subspan(kConnectRequestBytes);
  if (words.size() > kConnectRequestWordsMax) return std::nullopt;
  Prefix prefix;
  ConnectRequest connect_request;
  auto from = bytes;
  each_field(prefix, connect_request,
             [&]<class Number>(Number& field) { field = take_number<Number>(from); });
  if (prefix.magic != kMagic || prefix.version != kVersion) return std::nullopt;
  const net::Digest seal = key.sign({bytes.first(kFieldBytes), words});
  if (!net::same(seal, bytes.subspan(kFieldBytes, seal.size()))) return std::nullopt;
  if (connect_request.kind < ConnectRequestKind::shared_memory ||
      connect_request.kind > ConnectRequestKind::refusal ||
      connect_request.channel.lane > Lane::point_to_point) {
    return std::nullopt;
  }
  connect_request.words.assign(reinterpret_cast<const char*>(words.data()), words.size());
  return connect_request;
}

net::Digest connect_reply(std::span<const std::byte> connect_request, const net::Key& key) {
  return key.derive("welcome", {}).sign({connect_request});
}

}  // namespace tokenyard::collectives
