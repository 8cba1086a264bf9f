/// Messages between the ranks of a job, over its control links: authenticated, of up to kMessageMax
/// bytes, in order from one rank to another. All calls come from the control thread.
///
///  - A message counts only from a member of the view. One from a process that is no member yet, as
///    far as this one knows, is kept until it is; one from a process that was a member counts until
///    its link ends, and never after.
///  - A rank that leaves says goodbye behind its last message. One whose link ends otherwise is
///    lost for good, also if its process links again.
///
///     slot 2:  a former member                    its successor
///              message, message, [end] -> gone -> came, message, ...
///
/// Invariant: of a slot, one process is heard at a time. The next one is heard only behind the end
/// of the one before, so their messages never mix, whenever a verdict or a new link arrives.
///
/// Invariant: a rank is reported as gone only behind all messages of it that have arrived, also
/// where an agreement of the others (a verdict) names it before they have been read. So a call
/// which it has taken part in succeeds on every rank that its message has reached.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "control/links.hpp"
#include "control/words.hpp"

namespace tokenyard::control {

/// Takes what an Exchange delivers. Called by the control thread; returns at once.
class Inbox {
 public:
  virtual ~Inbox() = default;
  /// Returns false if the peer breaks the protocol; it is lost then.
  virtual bool received(Slot from, std::vector<std::byte> message) = 0;
  /// Messages of `member` follow, who holds its slot from now on; an earlier process of the slot is
  /// gone.
  virtual void came(const Member& member) = 0;
  /// No message of `peer` follows. `said_goodbye`: it has left; if not, it is lost.
  virtual void gone(Slot peer, bool said_goodbye) = 0;
  /// The others have gone on without this process. Nothing follows.
  virtual void evicted() = 0;
};

/// Calls of a rank upon its control plane. From any thread; each returns at once.
class RankControl {
 public:
  virtual ~RankControl() = default;
  /// Sends a message to the member that holds the slot; drops it if there is none. Messages from
  /// one rank to another arrive in order, and before the rank counts as gone. At most
  /// Exchange::kMessageMax bytes. Lets go of the message once the system has taken it.
  virtual void send(Slot to, Bytes message) = 0;
  /// Evicts a member for which this process has waited in vain, unless the members have agreed on
  /// another epoch than `seen_in` meanwhile, which may excuse it: then look again. Unlike
  /// MembershipControl::evict, needs no answer of it, and the witness counts: one of two members
  /// can do it.
  virtual void abandon(const Member& member, Epoch seen_in) = 0;
  /// Returns whether each member has, or had, a link to this process.
  virtual bool is_linked_to_all() const = 0;
};

class Exchange {
 public:
  /// Limit of a message, in bytes.
  static constexpr size_t kMessageMax = (size_t{64} << 20) + 8192;

  /// Both must outlive this.
  Exchange(RankLinks& links, Inbox& inbox) : links_(links), inbox_(inbox) {}

  /// Takes the next view, or the first one.
  void install(const View& view);
  /// Sends to the member that holds the slot; does nothing if there is no link to it. At most
  /// kMessageMax bytes.
  void send(Slot to, Bytes message);
  /// Tells all others that this rank sends nothing any more. Only the first call counts.
  void say_goodbye();
  /// Ends the exchange: the others have gone on without this process.
  void evict();

  /// Takes a frame for which `is_of_ranks` holds.
  void received(const Member& from, Topic topic, std::span<const std::byte> bytes);
  /// No frame of `peer` follows.
  void ended(const Member& peer);

 private:
  struct Peer {
    std::vector<std::byte> parts;                 ///< of a message whose last part is missing
    std::vector<std::vector<std::byte>> waiting;  ///< messages, until it is heard
    size_t waiting_bytes = 0;
    bool said_goodbye = false;
    bool ended = false;
    bool sent_too_much = false;  ///< it has lost messages, so another link changes nothing
    bool was_member = false;     ///< in this view or an earlier one
  };

  /// Limit of the bytes kept of a process that is not heard yet.
  static constexpr size_t kWaitingMax = 2 * kMessageMax;

  bool is_heard(const Member& member) const;
  /// Returns whether the process was a member and is heard no more.
  bool is_former(const Member& member) const;
  /// Hears the member from now on, unless the slot's process before it has not ended yet.
  void open(const Member& member);
  /// Delivers what has come, and the end if that has come, too, to which the slot's next process
  /// succeeds.
  void deliver(const Member& from, Peer& peer);

  RankLinks& links_;
  Inbox& inbox_;
  std::optional<View> view_;
  std::map<Slot, Member> heard_;  ///< the process of each slot that is heard, or was the last
  std::map<Member, Peer> peers_;  ///< former members stay, so that they are never heard again
  bool over_ = false;             ///< nothing is delivered any more
  bool goodbye_ = false;
};

}  // namespace tokenyard::control
