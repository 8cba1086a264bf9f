/// Mutual authentication of two processes that share a job's secret. A pure state machine (bytes
/// in, bytes out); the dialler and the acceptor each run one.
///
///     dialler                                          acceptor
///     hello: version, purpose, process,
///     epoch, job, sought, nonce             ---->      checks version, job, purpose and sought
///                                           <----      its own hello, and a proof over both
///     checks the proof; sends its own       ---->      checks it
///
/// The acceptor answers a hello of another version, or one that names another job, by a prefix
/// alone, from which the dialler learns why it is refused.
///
/// A proof is an HMAC under the job's secret over the prover's side and both hellos. It names its
/// side, so it cannot be reflected; it covers both nonces, so it cannot be replayed. From the same
/// inputs both processes derive two session keys, one per direction, which seal every later frame
/// (sealed_frame.hpp).
///
/// Invariant: before the proof is checked, a side uses the other's words only to refuse it or to
/// send its own hello and proof. A process without the secret has at most 112 bytes read and
/// chooses the size of no allocation. One that names another job learns the version and nothing
/// else. One that names the right job gets all of an acceptor's hello, since hellos are not
/// encrypted, and a proof against which it can check guesses of the secret, so the secret must be
/// random.
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
/// Version of everything said over these connections, membership and store messages included. A
/// mismatch is refused when ranks first meet; otherwise an unreadable message would be dropped at
/// the moment when it matters.
// 4: messages between ranks have slots, and steps that all complete an outcome.
inline constexpr uint16_t kControlVersion = 4;

/// The role in which a process connects.
enum class Purpose : uint16_t {
  member = 1,  ///< a rank of the job, or one of its founders
  newcomer,    ///< a process that asks to be admitted
  store,       ///< a client of the store, or its server
};

/// Identifies a process of a job: its slot, and a number that no other process of that slot shares.
struct ProcessId {
  uint32_t slot = 0;
  uint64_t incarnation = 0;
  auto operator<=>(const ProcessId&) const = default;
};

struct Introduction {
  Purpose purpose = Purpose::member;
  uint64_t job = 0;  ///< hash of the job's name: tells jobs apart, proves nothing
  ProcessId self;
  uint64_t epoch = 0;
  /// Incarnation that the dialler wants to reach, since addresses are reused; 0: any process of the
  /// job.
  uint64_t sought = 0;
};

class Handshake {
 public:
  enum class Side : uint8_t { dialler, acceptor };

  Handshake(Side side, const Key& key, const Introduction& self);

  /// Returns how many bytes `receive` needs next; 0 when the handshake is done.
  size_t wanted() const;
  /// Takes exactly `wanted()` bytes. Throws ProtocolError; a last output may be pending even then.
  void receive(std::span<const std::byte> bytes);
  /// Returns the bytes to send now; may be empty.
  std::vector<std::byte> take_output();

  bool done() const { return step_ == Step::done; }
  const Introduction& peer() const { return peer_; }
  // Only once the handshake is done.
  Key sending_key() const { return session_key(side_); }
  Key receiving_key() const { return session_key(other(side_)); }

  static constexpr size_t kPrefixBytes = 8;
  static constexpr size_t kHelloBytes = 80;

 private:
  /// The prefix is read first, so that garbage and other versions are rejected after 8 bytes.
  enum class Step : uint8_t { prefix, hello, proof, done };
  using Hello = std::array<std::byte, kHelloBytes>;

  static Side other(Side side) { return side == Side::dialler ? Side::acceptor : Side::dialler; }
  Digest proof_of(Side side) const;
  Key session_key(Side sender) const;
  void judge_prefix();
  void judge_hello();
  void refuse_job();

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
