#include "collectives/wire/invitation.hpp"

#include <algorithm>

namespace tokenyard::collectives {

namespace {

constexpr uint32_t kMagic = 0x49575954;  // "TYWI"
constexpr uint16_t kVersion = 1;
constexpr size_t kFieldBytes = kInvitationBytes - sizeof(Digest);

struct Writer {
  std::byte* at;
  template <class Number>
  void operator()(const Number& value) {
    for (size_t byte = 0; byte < sizeof(Number); ++byte) {
      *at++ = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * byte));
    }
  }
};

struct Reader {
  const std::byte* at;
  template <class Number>
  void operator()(Number& value) {
    uint64_t bits = 0;
    for (size_t byte = 0; byte < sizeof(Number); ++byte) {
      bits |= static_cast<uint64_t>(*at++) << (8 * byte);
    }
    value = static_cast<Number>(bits);
  }
};

struct Prefix {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
};

/// In their order on the wire, little-endian, for reading and for writing alike.
template <class PrefixFields, class Fields, class Visit>
void each_field(PrefixFields& prefix, Fields& invitation, Visit& visit) {
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

Key wire_key(const std::string& secret, const std::string& job) {
  return Key(secret, "tokenyard wire").derive("job", {as_bytes(job)});
}

std::vector<std::byte> encode(const Invitation& invitation, const Key& key) {
  const auto words =
      as_bytes(invitation.words).first(std::min(invitation.words.size(), kInvitationWordsMax));
  std::vector<std::byte> bytes(kInvitationBytes + words.size());
  Prefix prefix;
  Writer write{bytes.data()};
  each_field(prefix, invitation, write);
  const Digest seal = key.sign({std::span(bytes).first(kFieldBytes), words});
  std::copy(seal.begin(), seal.end(), bytes.begin() + kFieldBytes);
  std::copy(words.begin(), words.end(), bytes.begin() + kInvitationBytes);
  return bytes;
}

std::optional<Invitation> decode_invitation(std::span<const std::byte> bytes, const Key& key) {
  if (bytes.size() < kInvitationBytes) return std::nullopt;
  const auto words = bytes.subspan(kInvitationBytes);
  if (words.size() > kInvitationWordsMax) return std::nullopt;
  Prefix prefix;
  Invitation invitation;
  Reader read{bytes.data()};
  each_field(prefix, invitation, read);
  if (prefix.magic != kMagic || prefix.version != kVersion) return std::nullopt;
  const Digest seal = key.sign({bytes.first(kFieldBytes), words});
  if (!same(seal, bytes.subspan(kFieldBytes, seal.size()))) return std::nullopt;
  if (invitation.kind < InvitationKind::shared_memory ||
      invitation.kind > InvitationKind::refusal || invitation.channel.lane > Lane::point_to_point) {
    return std::nullopt;
  }
  invitation.words.assign(reinterpret_cast<const char*>(words.data()), words.size());
  return invitation;
}

Digest welcome(std::span<const std::byte> invitation, const Key& key) {
  return key.derive("welcome", {}).sign({invitation});
}

}  // namespace tokenyard::collectives
