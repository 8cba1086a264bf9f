/// Holds the messages that arrived for one rank, and the state of its peers. The mesh (other ranks'
/// threads, or the control thread) fills it and the rank drains it.
///
/// Ranks are identified by slot: the rank that they had when the job began, which never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tokenyard {

enum class MessageKind : uint8_t {
  collective,
  rebuild,
  gone_on,         ///< the sender has gone on to another world, and sends nothing more in this one
  network_failed,  ///< the sender's network has failed, and `what` says why
  timeout_report,  ///< a call of object `sequence` has failed on the sender, which waited for the
                   ///< rank in the only slot of `slots`
};

struct Message {
  MessageKind kind = MessageKind::collective;
  uint32_t generation = 0;  ///< of the world that it was sent in; `rebuild`: the one asked for
  uint64_t sequence = 0;    ///< number of the collective in that world
  std::string what = {};    ///< name of the call, for errors and to detect mismatched calls
  std::vector<uint32_t> slots = {};  ///< `rebuild`: those of the world that is asked for, ascending
  std::vector<std::byte> bytes = {};
  std::shared_ptr<void> object = {};  ///< only between ranks of one process
};

enum class PeerState : uint8_t { present, left, lost };

class Mailbox {
 public:
  /// A peer runs ahead by one collective at most; aborted collectives leave a few messages behind.
  static constexpr size_t kMessagesMax = 1024;

  explicit Mailbox(uint32_t slots);

  /// Returns false if the queue is full, which means that the peer violates the protocol.
  bool put(uint32_t from, Message message);
  /// Returns the peer's message for that collective, if it has arrived. Drops its messages for
  /// earlier collectives and generations, which no call awaits any more.
  std::optional<Message> take(uint32_t from, uint32_t generation, uint64_t sequence);
  /// Returns the peer's newest request for another world; keeps it.
  std::optional<Message> latest_rebuild(uint32_t from) const;
  /// Notes a generation that a world here has, or that this rank has asked for.
  void note_generation(uint32_t generation);
  /// Returns the latest one noted; 0 if there is none. The next one that this rank asks for is
  /// later, so no two worlds over one mesh have the same.
  uint32_t newest_generation() const;

  PeerState state(uint32_t slot) const;
  /// Sets the state of a present peer. The first change is final: a peer that said goodbye does not
  /// become lost when its connection closes. This rank's own slot is lost once the others have
  /// evicted it.
  void mark(uint32_t slot, PeerState state);
  /// Begins anew with the next process of a slot: present, and nothing received from it. Worlds
  /// that its predecessor was in know it as gone.
  void revive(uint32_t slot);

  /// Called by the thread that notices; never after `unwatch` has returned.
  class Watcher {
   public:
    virtual ~Watcher() = default;
    /// Called once per peer that is gone or goes.
    virtual void went(uint32_t slot, PeerState state) = 0;
    /// Called for every message that is of no collective, of which the last request to rebuild a
    /// world is kept for watchers to come.
    virtual void said(uint32_t slot, const Message& message) = 0;
  };
  /// Watchers are called in the order in which they began.
  void watch(Watcher& watcher);
  void unwatch(Watcher& watcher);

 private:
  struct SlotState {
    PeerState state = PeerState::present;
    std::deque<Message> collectives;
    std::optional<Message> rebuild;
  };

  mutable std::mutex mutex_;
  std::vector<SlotState> slots_;
  uint32_t newest_generation_ = 0;
  std::vector<Watcher*> watchers_;  ///< not by address, which no seed draws
};

}  // namespace tokenyard
