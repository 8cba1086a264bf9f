#include "net/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/little_endian.hpp"

namespace tokenyard::net {

namespace {

// A hello on the wire, little-endian: magic 4, version 2, purpose 2, slot 4, unused 4, incarnation
// 8, epoch 8, job 8, sought 8, nonce 32. Later versions must keep magic and version in place.
// Magic, version and purpose are the prefix; a prefix alone refuses the dialler.
constexpr size_t kNonceBytes = 32;
/// Stands for the purpose in the prefix that answers a hello of another job.
constexpr uint16_t kAnotherJob = 0;
constexpr const char* kNamesAnotherJob = "belongs to another job";
static_assert(Handshake::kHelloBytes == 4 + 2 + 2 + 4 + 4 + 8 + 8 + 8 + 8 + kNonceBytes);

}  // namespace

Handshake::Handshake(Side side, const Key& key, const Introduction& self)
    : side_(side), key_(key), self_(self) {
  std::span<std::byte> to(mine_);
  put_number(to, kControlMagic);
  put_number(to, kControlVersion);
  put_number(to, static_cast<uint16_t>(self.purpose));
  put_number(to, self.self.slot);
  put_number(to, uint32_t{0});
  put_number(to, self.self.incarnation);
  put_number(to, self.epoch);
  put_number(to, self.job);
  put_number(to, self.sought);
  fill_randomly(to.first(kNonceBytes));
  if (side_ == Side::dialler) output_.assign(mine_.begin(), mine_.end());
}

size_t Handshake::wanted() const {
  switch (step_) {
    case Step::prefix:
      return kPrefixBytes;
    case Step::hello:
      return kHelloBytes - kPrefixBytes;
    case Step::proof:
      return sizeof(Digest);
    case Step::done:
      break;
  }
  return 0;
}

void Handshake::receive(std::span<const std::byte> bytes) {
  if (bytes.size() != wanted()) throw ProtocolError("sent a handshake message of the wrong length");
  switch (step_) {
    case Step::prefix:
      std::ranges::copy(bytes, theirs_.begin());
      judge_prefix();
      step_ = Step::hello;
      break;
    case Step::hello:
      std::ranges::copy(bytes, theirs_.begin() + kPrefixBytes);
      judge_hello();
      step_ = Step::proof;
      if (side_ == Side::acceptor) {
        const Digest proof = proof_of(side_);
        output_.assign(mine_.begin(), mine_.end());
        output_.insert(output_.end(), proof.begin(), proof.end());
      }
      break;
    case Step::proof:
      if (!same(bytes, proof_of(other(side_))))
        throw ProtocolError("does not know the job's secret");
      step_ = Step::done;
      if (side_ == Side::dialler) {
        const Digest proof = proof_of(side_);
        output_.assign(proof.begin(), proof.end());
      }
      break;
    case Step::done:
      throw ProtocolError("sent more after the handshake was done");
  }
}

std::vector<std::byte> Handshake::take_output() {
  return std::exchange(output_, {});
}

void Handshake::judge_prefix() {
  std::span<const std::byte> from(theirs_);
  if (take_number<uint32_t>(from) != kControlMagic)
    throw ProtocolError("does not speak our protocol");
  const auto version = take_number<uint16_t>(from);
  if (version != kControlVersion) {
    // Our own prefix tells the peer why it is rejected.
    if (side_ == Side::acceptor) output_.assign(mine_.begin(), mine_.begin() + kPrefixBytes);
    throw ProtocolError(
        fmt::format("speaks version {} of the protocol, not {}", version, kControlVersion));
  }
  if (side_ == Side::dialler && take_number<uint16_t>(from) == kAnotherJob)
    throw ProtocolError(kNamesAnotherJob);
}

void Handshake::judge_hello() {
  auto from = std::span<const std::byte>(theirs_).subspan(sizeof(uint32_t) + sizeof(uint16_t));
  peer_.purpose = static_cast<Purpose>(take_number<uint16_t>(from));
  peer_.self.slot = take_number<uint32_t>(from);
  take_number<uint32_t>(from);  // Unused.
  peer_.self.incarnation = take_number<uint64_t>(from);
  peer_.epoch = take_number<uint64_t>(from);
  peer_.job = take_number<uint64_t>(from);
  peer_.sought = take_number<uint64_t>(from);
  if (peer_.job != self_.job) {
    if (side_ == Side::acceptor) refuse_job();
    throw ProtocolError(kNamesAnotherJob);
  }
  const bool store = self_.purpose == Purpose::store;
  if (peer_.purpose < Purpose::member || peer_.purpose > Purpose::store ||
      (peer_.purpose == Purpose::store) != store) {
    throw ProtocolError(
        fmt::format("connected for another purpose ({})", static_cast<int>(peer_.purpose)));
  }
  if (store) return;
  if (peer_.self.incarnation == 0) throw ProtocolError("sent no incarnation");
  if (peer_.sought != 0 && peer_.sought != self_.self.incarnation) {
    throw ProtocolError("looks for another process");
  }
}

/// Tells the peer why it is refused, and nothing that it does not know.
void Handshake::refuse_job() {
  output_.resize(kPrefixBytes);
  std::span<std::byte> to(output_);
  put_number(to, kControlMagic);
  put_number(to, kControlVersion);
  put_number(to, kAnotherJob);
}

Digest Handshake::proof_of(Side side) const {
  const bool mine_first = side_ == Side::dialler;
  return key_.sign({as_bytes(side == Side::dialler ? "dialler" : "acceptor"),
                    mine_first ? mine_ : theirs_, mine_first ? theirs_ : mine_});
}

Key Handshake::session_key(Side sender) const {
  const bool mine_first = side_ == Side::dialler;
  return key_.derive(sender == Side::dialler ? "from dialler" : "from acceptor",
                     {mine_first ? mine_ : theirs_, mine_first ? theirs_ : mine_});
}

}  // namespace tokenyard::net
