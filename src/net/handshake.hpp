/// How two processes that know a job's secret make sure of one another, before either believes a
/// word. Pure: bytes in, bytes out; an acceptor and a dialler are two of these.
///
///     dialler                                            acceptor
///     hello: version, job, who I am, a nonce   ---->     judges version and job
///                                              <----     its own hello, and a proof over both
///     checks the proof; a proof of its own     ---->     checks it
///
/// Both then have the same two session keys, one a direction, which seal every later frame
/// (sealed_frame.hpp). A proof says who gave it, so none can be reflected; it covers both nonces,
/// so none can be replayed. Who cannot prove that he knows the secret has had 112 bytes read, no
/// memory made for him, and learns nothing but our slot and incarnation.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/key.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::net {

inline constexpr uint32_t kControlMagic = 0x4c435954;  // "TYCL"
/// Of all that is said over these connections, by the membership and the store, too. A job of two
/// versions is refused where it begins; else what one cannot read would be dropped when it matters.
// 3: promises name whom to evict, and groups have labels and stages.
inline constexpr uint16_t kControlVersion = 3;

/// What a connection is for.
enum class Purpose : uint16_t {
  member = 1,  ///< a rank that belongs to the job, or is about to found it with the others
  newcomer,    ///< a process that wants to be admitted
  store,       ///< a client of the store, or the store
};

/// A process of a job: its slot, and a number that no other process in that slot has or had.
struct ProcessId {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  auto operator<=>(const ProcessId&) const = default;
};

struct Introduction {
  Purpose purpose = Purpose::member;
  uint64_t job = 0;  ///< job_number of its name
  ProcessId self;
  uint64_t epoch = 0;
  /// The incarnation that the dialler wants to reach; 0: anybody of the job. Addresses are reused.
  uint64_t sought = 0;
};

class Handshake {
 public:
  enum class Side : uint8_t { dialler, acceptor };

  Handshake(Side side, const Key& key, const Introduction& self);

  /// How many bytes `receive` wants next; 0 when it is done.
  size_t wanted() const;
  /// Exactly `wanted()` bytes. Throws ProtocolError; even then there may be a last output.
  void receive(std::span<const std::byte> bytes);
  /// To be sent now. May be empty.
  std::vector<std::byte> take_output();

  bool done() const { return step_ == Step::done; }
  const Introduction& peer() const { return peer_; }
  /// Once it is done.
  Key sending_key() const { return session_key(side_); }
  Key receiving_key() const { return session_key(other(side_)); }

  static constexpr size_t kPrefixBytes = 8;
  static constexpr size_t kHelloBytes = 80;

 private:
  /// The prefix first, so that garbage and other versions are turned away by their first 8 bytes.
  enum class Step : uint8_t { prefix, hello, proof, done };
  using Hello = std::array<std::byte, kHelloBytes>;

  static Side other(Side side) { return side == Side::dialler ? Side::acceptor : Side::dialler; }
  Digest proof_of(Side side) const;
  Key session_key(Side sender) const;
  void judge_prefix();
  void judge_hello();

  const Side side_;
  const Key key_;
  const Introduction self_;
  Hello mine_;
  Hello theirs_{};
  Introduction peer_;
  Step step_ = Step::prefix;
  std::vector<std::byte> output_;
};

}  // namespace tokenyard::net
