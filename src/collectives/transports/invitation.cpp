#include "collectives/transports/invitation.hpp"

#include <algorithm>

#include "base/little_endian.hpp"

namespace tokenyard::collectives {

namespace {

constexpr uint32_t kMagic = 0x49575954;  // "TYWI"
constexpr uint16_t kVersion = 1;
constexpr size_t kFieldBytes = kInvitationBytes - sizeof(net::Digest);

struct Prefix {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
};

/// In their order on the wire, little-endian, for reading and for writing alike.
void each_field(auto& prefix, auto& invitation, auto visit) {
  visit(prefix.magic);
  visit(prefix.version);
  visit(invitation.kind);
  visit(invitation.channel.lane);
  visit(invitation.channel.epoch);
  visit(invitation.channel.group);
  visit(invitation.channel.maker.slot);
  visit(invitation.channel.maker.incarnation);
  visit(invitation.channel.taker.slot);
  visit(invitation.channel.taker.incarnation);
  visit(invitation.bytes);
  visit(invitation.file);
  visit(invitation.stripe);
  visit(invitation.stripes);
  visit(invitation.nonce);
}
static_assert(kFieldBytes == 4 + 2 + 1 + 1 + 2 * 8 + 2 * (4 + 8) + 2 * 8 + 2 * 4 + 8,
              "what each_field visits is what the seal leaves");

}  // namespace

net::Key wire_key(const std::string& secret, const std::string& job) {
  return net::Key(secret, "tokenyard wire").derive("job", {net::as_bytes(job)});
}

std::vector<std::byte> encode(const Invitation& invitation, const net::Key& key) {
  const auto words =
      net::as_bytes(invitation.words).first(std::min(invitation.words.size(), kInvitationWordsMax));
  std::vector<std::byte> bytes(kInvitationBytes + words.size());
  const Prefix prefix;
  std::span<std::byte> to(bytes);
  each_field(prefix, invitation, [&](auto field) { put_number(to, field); });
  const net::Digest seal = key.sign({std::span(bytes).first(kFieldBytes), words});
  std::copy(seal.begin(), seal.end(), bytes.begin() + kFieldBytes);
  std::copy(words.begin(), words.end(), bytes.begin() + kInvitationBytes);
  return bytes;
}

std::optional<Invitation> decode_invitation(std::span<const std::byte> bytes, const net::Key& key) {
  if (bytes.size() < kInvitationBytes) return std::nullopt;
  const auto words = bytes.subspan(kInvitationBytes);
  if (words.size() > kInvitationWordsMax) return std::nullopt;
  Prefix prefix;
  Invitation invitation;
  auto from = bytes;
  each_field(prefix, invitation,
             [&]<class Number>(Number& field) { field = take_number<Number>(from); });
  if (prefix.magic != kMagic || prefix.version != kVersion) return std::nullopt;
  const net::Digest seal = key.sign({bytes.first(kFieldBytes), words});
  if (!net::same(seal, bytes.subspan(kFieldBytes, seal.size()))) return std::nullopt;
  if (invitation.kind < InvitationKind::shared_memory ||
      invitation.kind > InvitationKind::refusal || invitation.channel.lane > Lane::point_to_point) {
    return std::nullopt;
  }
  invitation.words.assign(reinterpret_cast<const char*>(words.data()), words.size());
  return invitation;
}

net::Digest welcome(std::span<const std::byte> invitation, const net::Key& key) {
  return key.derive("welcome", {}).sign({invitation});
}

}  // namespace tokenyard::collectives
