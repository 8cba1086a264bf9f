/// Messages from one rank of a group to another, each received once, whatever happens between.
///
///     sender                         receiver
///     eager(number, bytes)  ---->    keeps it, or gives it to the receive that waits for it
///                           <----    received(number)
///
///     offer(number, length) ---->    large, or too much is on its way: nothing but the offer moves
///                           <----    accept(number): a receive is there for it
///     content(number, bytes) --->    straight into its place
///                           <----    received(number)
///
/// Where the receive has run out of time by then, its content is thrown away, and the offer stands:
/// nothing is received that nobody got.
///
/// Messages of an ordered pair are numbered. A sender keeps what has not been received (small ones
/// as copies, so that their senders need not wait), and says it again in the next epoch; a receiver
/// knows which numbers it has had. Messages of one tag arrive in the order in which they were sent.
///
/// Invariant: what a receiver keeps for others is bounded: eager_bytes_max a peer, and an offer for
/// each send that its sender waits for.
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

namespace tokenyard::collectives {

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
  std::optional<uint32_t> peer;  ///< of a receive from anybody: once it is there
};

class PointToPoint {
 public:
  static constexpr size_t eager_max = 8 << 10;
  static constexpr size_t eager_bytes_max = 1 << 20;

  PointToPoint(EngineContext& engine_context, const GroupIdentity& identity);

  std::shared_ptr<Outcome> send(ConstArray array, uint32_t to, uint64_t tag, Instant now,
                                std::chrono::nanoseconds timeout);
  std::shared_ptr<Outcome> receive(Array array, std::optional<uint32_t> from, uint64_t tag,
                                   Instant now, std::chrono::nanoseconds timeout);
  /// Whose messages are read though nobody here waits for them.
  enum class Attention : uint8_t { nobody, acquainted, everybody };
  bool poll(Instant now, Attention attention);
  /// Somebody's messages have been received here.
  bool has_acquaintances() const;
  bool idle() const;
  /// Refuses calls from now on and fails receives; what has been sent stays on its way.
  void begin_to_leave(const std::exception_ptr& why);
  /// Everything that was sent has been received, and whoever sent something knows.
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
    std::vector<std::byte> copy;         // of an eager one
    std::span<const std::byte> content;  // of an offered one: the caller's
    bool eager = false;
    bool flowing = false;                         // its content has been posted
    std::shared_ptr<MessageOperation> operation;  // null once its caller has been told
    uint64_t tag = 0;
    DataType type = DataType::uint8;
    size_t bytes() const { return eager ? copy.size() : content.size(); }
  };
  /// An offer stays until its content has come. While that of one whose receive has ended is thrown
  /// away, no later message of its tag is given to anybody.
  enum class Stage : uint8_t { here, accepted, thrown_away };
  struct Arrived {
    uint64_t tag = 0;
    DataType type = DataType::uint8;
    size_t bytes = 0;
    bool eager = false;
    Stage stage = Stage::here;
    std::vector<std::byte> copy;
    uint64_t order = 0;  // among all peers' arrivals
  };
  struct Receiving {
    std::shared_ptr<MessageOperation> operation;
    std::span<std::byte> into;
    std::optional<uint32_t> from;
    std::optional<std::pair<uint32_t, Number>> accepted;  // content comes from this rank
  };
  struct Peer {
    std::optional<Stream> stream;
    uint64_t incarnation = 0;
    // As sender.
    Number last_number = 0;
    std::map<Number, Sending> sending;
    size_t eager_bytes = 0;  // not received yet
    // As receiver: all up to `floor` has been received, and what is in `above`.
    Number floor = 0;
    std::set<Number> above;
    std::map<Number, Arrived> arrived;
    std::vector<std::byte> eager;  // the payload that is coming in
    size_t got = 0;
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
  /// Its receive is over before the content is here.
  void let_go(const Receiving& receiving);

  /// Gives what has arrived to those who wait for it.
  void match();
  std::optional<std::pair<uint32_t, Number>> find_arrived(const Receiving& receiving) const;
  /// True if the receive is over.
  bool give(Receiving& receiving, uint32_t from, Number number);

  void finish(const std::shared_ptr<MessageOperation>& operation, std::exception_ptr error);
  std::exception_ptr timeout_error(const MessageOperation& operation, const char* what,
                                   std::optional<uint32_t> peer, Instant now) const;
  std::exception_ptr lost_error(const char* what, uint32_t peer) const;
  void check_deadlines(Instant now);
  bool is_active(uint32_t rank) const;
  void renew(uint32_t rank, const Member& member);
  void lose(uint32_t rank);

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
