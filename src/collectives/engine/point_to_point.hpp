/// Messages from one rank of a group to another. Each is received exactly once, whatever fails in
/// between.
///
///     sender                         receiver
///     eager(number, bytes)  ---->    keeps it, or passes it to a waiting receive
///                           <----    received(number)
///
///     offer(number, length) ---->    large, or much is on its way already: only the offer moves
///                           <----    accept(number): a receive waits for it
///     content(number, bytes) --->    written straight into the receive's memory
///                           <----    received(number)
///
/// A message is small if it has no more bytes than the eager limit of its sender, which 0 makes
/// small for none, not even for an empty one: then each send ends once a receive has its content.
///
/// If the receive has timed out before its content arrives, the content is discarded and the offer
/// stands: a message counts as received only if a caller got it.
///
/// Messages of an ordered pair of ranks are numbered. A sender keeps each message until it is
/// received (small ones as copies, so their callers need not wait) and sends it again in the next
/// epoch; a receiver knows which numbers it has had. Hence exactly once. Messages of one tag arrive
/// in the order in which they were sent.
///
/// Invariant: the memory in which a receiver keeps messages is bounded: eager_bytes_max per peer,
/// one offer per send whose caller waits, and one per small message that came when that memory was
/// full. Such a message stays with its sender, who keeps at most eager_bytes_max of them.
///
/// Invariant: frames that no correct rank sends end the messages with that rank until the next
/// epoch, and nothing else; each names the rank and what came (`break_off`).
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "collectives/engine/engine_context.hpp"
#include "collectives/interfaces/array.hpp"
#include "collectives/interfaces/stream.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/job.hpp"

namespace tokenyard::collectives {

/// Throws InvalidArgument for more than `eager_limit_max` bytes.
void check_eager_limit(size_t bytes);

class MessageOperation : public Outcome {
 public:
  MessageOperation(Instant called, std::chrono::nanoseconds timeout, uint64_t tag, DataType type)
      : called(called), deadline(called + timeout), timeout(timeout), tag(tag), type(type) {}
  uint32_t source() const override { return peer.value_or(0); }

  const Instant called;
  Instant deadline;
  const std::chrono::nanoseconds timeout;
  const uint64_t tag;
  const DataType type;
  std::optional<uint32_t> peer;  ///< for a receive from any rank: set on arrival
};

class PointToPoint {
 public:
  static constexpr size_t eager_max = eager_limit_max;
  static constexpr size_t eager_bytes_max = 1 << 20;
  /// Returns how much a message of this length counts towards `eager_bytes_max`: an empty one takes
  /// memory, too.
  static constexpr size_t kept_bytes(size_t bytes) { return bytes + 64; }

  PointToPoint(EngineContext& engine_context, const GroupIdentity& identity);

  /// `eager_limit`: at most `eager_max`.
  std::shared_ptr<Outcome> send(ConstArray array, uint32_t to, uint64_t tag, Instant now,
                                std::chrono::nanoseconds timeout, size_t eager_limit);
  std::shared_ptr<Outcome> receive(Array array, std::optional<uint32_t> from, uint64_t tag,
                                   Instant now, std::chrono::nanoseconds timeout);
  /// The peers whose messages are read even if no caller here waits for one.
  enum class Attention : uint8_t { nobody, acquainted, everybody };
  bool poll(Instant now, Attention attention);
  /// Returns whether messages of any peer have been received here.
  bool has_acquaintances() const;
  bool idle() const;
  /// Rejects calls from now on and fails receives; sent messages stay on their way.
  void begin_to_leave(const std::exception_ptr& why);
  /// Returns whether all sent messages have been received, and all senders have been told so.
  bool drained() const;
  std::optional<Slot> unreceived_by() const;
  std::optional<Instant> next_deadline() const;
  void extend(uint32_t slots);
  void rename(GroupId id) { identity_.id = id; }
  void install(const Verdict& verdict, Instant now);
  void fail(const std::exception_ptr& why);
  uint64_t bytes_sent() const;

 private:
  using Number = uint64_t;
  struct Sending {
    Number number = 0;
    std::vector<std::byte> copy;         // if eager
    std::span<const std::byte> content;  // if offered: the caller's memory
    bool eager = false;
    bool flowing = false;                         // its content has been posted
    std::shared_ptr<MessageOperation> operation;  // null once its caller has its result
    uint64_t tag = 0;
    DataType type = DataType::uint8;
    size_t bytes() const { return eager ? copy.size() : content.size(); }
  };
  /// An offer stays until its content has arrived. While the content of an offer whose receive has
  /// ended is discarded, no later message of its tag is passed to a receive.
  enum class Stage : uint8_t { here, accepted, thrown_away };
  struct Arrived {
    uint64_t tag = 0;
    DataType type = DataType::uint8;
    size_t bytes = 0;
    bool eager = false;
    Stage stage = Stage::here;
    std::vector<std::byte> copy;
    uint64_t order = 0;  // among the arrivals of all peers
  };
  struct Receiving {
    std::shared_ptr<MessageOperation> operation;
    std::span<std::byte> into;
    std::optional<uint32_t> from;
    std::optional<std::pair<uint32_t, Number>> accepted;  // its content will come from this rank
  };
  struct Peer {
    std::optional<Stream> stream;
    uint64_t incarnation = 0;
    // As sender.
    Number last_number = 0;
    std::map<Number, Sending> sending;
    size_t eager_bytes = 0;  // sent but not received, as kept_bytes counts
    // As receiver: has received all numbers up to `floor`, and those in `above`.
    Number floor = 0;
    std::set<Number> above;
    std::map<Number, Arrived> arrived;
    size_t kept = 0;               // of eager messages in `arrived`, as kept_bytes counts
    std::vector<std::byte> eager;  // payload being received
    size_t got = 0;
    std::exception_ptr broken;  // it sent what no correct rank sends, in this epoch
    bool is_acquainted() const { return floor > 0 || !above.empty(); }
    bool has(Number number) const { return number <= floor || above.contains(number); }
    void note(Number number);
  };

  Stream& stream(uint32_t rank);
  void post(uint32_t to, FrameKind kind, Number number, const Sending* sending,
            std::span<const std::byte> payload);
  void say(uint32_t to, Sending& sending);
  bool read(uint32_t from);
  bool take(uint32_t from, const FrameHeader& header);
  bool take_eager(uint32_t from, const FrameHeader& header);
  bool take_content(uint32_t from, const FrameHeader& header);
  void take_received(uint32_t from, Number number);
  void take_accept(uint32_t from, Number number);
  void take_unfit(uint32_t from, const FrameHeader& header);
  void take_withdrawn(uint32_t from, Number number);
  Receiving* find_accepted(uint32_t from, Number number);
  /// Handles a receive that ends before its content has arrived.
  void let_go(const Receiving& receiving);

  /// Passes arrived messages to the receives that wait for them.
  void match();
  std::optional<std::pair<uint32_t, Number>> find_arrived(const Receiving& receiving) const;
  /// Returns whether the receive is over.
  bool give(Receiving& receiving, uint32_t from, Number number);

  void finish(const std::shared_ptr<MessageOperation>& operation, std::exception_ptr error);
  std::exception_ptr timeout_error(const MessageOperation& operation, const char* what,
                                   std::optional<uint32_t> peer, Instant now) const;
  std::exception_ptr lost_error(const char* what, uint32_t peer) const;
  void check_deadlines(Instant now);
  bool is_active(uint32_t rank) const;
  void renew(uint32_t rank, const Member& member);
  void lose(uint32_t rank);
  /// Ends the messages with a rank that broke the protocol, until the next epoch.
  void break_off(uint32_t rank, const InternalError& error);

  EngineContext& context_;
  GroupIdentity identity_;
  std::vector<Peer> peers_;
  std::list<Receiving> receiving_;
  uint64_t arrivals_ = 0;
  std::exception_ptr leaving_;
  std::exception_ptr failed_;
  uint64_t bytes_sent_before_ = 0;
};

}  // namespace tokenyard::collectives
