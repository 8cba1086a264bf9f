/// Messages between the ranks of a job, over its control links: authenticated, of up to kMessageMax
/// bytes, in order from one rank to another. All calls come from the control thread.
///
///  - A message counts only from a founder of this process's own job. One that comes before this
///    process has read the founders' names is kept until then.
///  - A rank that leaves says goodbye behind its last message. One whose link ends otherwise is
///    lost for good, also if its process links again.
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
  /// No message of `peer` follows. `said_goodbye`: it has left; if not, it is lost.
  virtual void gone(Slot peer, bool said_goodbye) = 0;
  /// The others have gone on without this process. Nothing follows.
  virtual void evicted() = 0;
};

class Exchange {
 public:
  /// Limit of a message, in bytes.
  static constexpr size_t kMessageMax = (size_t{64} << 20) + 8192;

  /// Both must outlive this.
  Exchange(Links& links, Inbox& inbox) : links_(links), inbox_(inbox) {}

  /// Begins with the founders of the job.
  void begin(const View& founders);
  /// Sends to a founder; does nothing if it is gone. At most kMessageMax bytes.
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
    std::vector<std::vector<std::byte>> waiting;  ///< messages, until `begin`
    bool said_goodbye = false;
    bool ended = false;
  };

  bool is_founder(const Member& member) const;
  /// Delivers what has come, and the end if that has come, too.
  void deliver(const Member& from, Peer& peer);

  Links& links_;
  Inbox& inbox_;
  std::optional<View> founders_;
  std::map<Member, Peer> peers_;
  bool over_ = false;  ///< nothing is delivered any more
  bool goodbye_ = false;
};

}  // namespace tokenyard::control
