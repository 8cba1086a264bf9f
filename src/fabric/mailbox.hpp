/// What has arrived for one rank from the others, and which of them are still there. Filled by
/// whatever carries messages (other threads, a socket's thread), emptied by the rank.
///
/// Ranks are known here by their seat: the rank they had when the job began, which never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tokenyard {

enum class MessageKind : uint8_t { collective, rebuild };

struct Message {
  MessageKind kind = MessageKind::collective;
  uint32_t generation = 0;  ///< world in which it was sent; `rebuild`: that which it asks for
  uint64_t sequence = 0;    ///< number of the collective in that world
  std::string what = {};    ///< which call it is, for people and to detect calls out of step
  std::vector<std::byte> bytes = {};
  std::shared_ptr<void> object = {};  ///< only between ranks of one process
};

enum class PeerState : uint8_t { present, left, lost };

class Mailbox {
 public:
  /// A peer is ahead by one collective at most; aborted ones leave a few behind.
  static constexpr size_t kMessagesMax = 1024;

  explicit Mailbox(uint32_t slots);

  /// False if the queue is full: that peer does not follow the protocol.
  bool put(uint32_t from, Message message);
  /// The peer's message of that collective, if it has come. Drops those of earlier collectives and
  /// generations, which nobody waits for any more.
  std::optional<Message> take(uint32_t from, uint32_t generation, uint64_t sequence);
  /// Returns the peer's newest request for another world. It stays.
  std::optional<Message> latest_rebuild(uint32_t from) const;

  PeerState state(uint32_t slot) const;
  /// The first change stays: a peer that said goodbye is not lost when its connection closes. This
  /// rank's own slot is lost once the others have evicted it.
  void mark(uint32_t slot, PeerState state);

  /// Called for every peer that is gone already, and for each that goes, by the thread that
  /// notices. Not after `unwatch` has returned.
  using Watcher = std::function<void(uint32_t slot, PeerState state)>;
  /// Likewise for every call to rebuild a world.
  using RebuildWatcher = std::function<void(uint32_t slot, const Message& rebuild)>;
  uint64_t watch(Watcher watcher, RebuildWatcher rebuild_watcher = {});
  void unwatch(uint64_t watch);

 private:
  struct SlotState {
    PeerState state = PeerState::present;
    std::deque<Message> collectives;
    std::optional<Message> rebuild;
  };

  mutable std::mutex mutex_;
  std::vector<SlotState> slots_;
  struct Watch {
    Watcher watcher;
    RebuildWatcher rebuild_watcher;
  };
  std::map<uint64_t, Watch> watchers_;
  uint64_t watches_ = 0;
};

}  // namespace tokenyard
