/// The effects of one peer's frames on this rank's memory. Pure: bytes in, stores and reports out;
/// the sockets are its user's. A peer's bytes are never trusted: a put lands only where its key
/// opens a region that holds all of it.
///
/// A path's bytes arrive where `room` says: the payload of a put straight in its target, headers
/// and short payloads in the path's buffer.
///
/// Where paths may be lost, frames are acknowledged, and signals and questions wait beside their
/// path, since a frame that is sent again may come behind one that waits for it. Each waits for
/// frames whose requests have not completed, so they are no more than their queue has slots.
///
/// Invariant: a path stands still only where none is lost, and only at a signal, or a question,
/// that waits for put frames which were sent before it on other paths. Of all paths that stand
/// still, the one whose head was sent first waits for nothing that stands behind another head; so
/// they never all wait for one another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric/proxy/put_frame.hpp"
#include "fabric/proxy/registered_regions.hpp"

namespace tokenyard {

class ReceiverListener {
 public:
  virtual ~ReceiverListener() = default;
  /// A request of the peer's was refused here: the peer is to be told.
  virtual void refuse(uint32_t peer, uint32_t queue, NetworkCheck check,
                      const NetworkRefusal& refusal) = 0;
  /// The peer's requests before `turn` have taken effect here: it is to be told.
  virtual void answer_settled(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  // The peer's answers to this rank's requests.
  virtual void refused(uint32_t peer, uint32_t queue, NetworkCheck check,
                       const NetworkRefusal& refusal) = 0;
  virtual void settled(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  // Where frames are acknowledged: frames before `count` of a life of a path have been taken there;
  // or they alone ever will be, and the path is closed there.
  virtual void taken(uint32_t /*peer*/, uint32_t /*path*/, uint32_t /*life*/, uint32_t /*count*/) {}
  virtual void closed(uint32_t /*peer*/, uint32_t /*path*/, uint32_t /*life*/, uint32_t /*count*/) {
  }
};

class PeerReceiver {
 public:
  struct Options {
    uint32_t peer, epoch, queues, paths;
    bool acknowledged = false;
  };
  /// Both outlive this.
  PeerReceiver(const Options& options, const RegisteredRegions& regions,
               ReceiverListener& listener);

  /// Returns where the path's next bytes go: the first of two spans first. Both are empty while
  /// the path stands still.
  std::array<std::span<std::byte>, 2> room(uint32_t path);
  /// Takes so many bytes that have been written there. Throws net::ProtocolError; then this must
  /// not be used any more.
  void received(uint32_t path, size_t bytes);
  /// Goes on with paths that stood still; returns whether one did. For after `received`.
  bool resume();
  /// Lets the rest of puts that are arriving in a region go nowhere, and refuses them.
  void withdraw(uint32_t region);

  /// Returns the number of a path's frames that have been taken wholly.
  uint32_t taken(uint32_t path) const {
    return paths_[path].sequence - (paths_[path].left != 0 || paths_[path].waits ? 1 : 0);
  }
  /// Returns how many of them are no acknowledgements.
  uint32_t worth_acknowledging(uint32_t path) const { return paths_[path].worth; }
  /// Begins a path's next life. A payload that was arriving is forgotten.
  void reopen(uint32_t path);

 private:
  static constexpr size_t kBufferBytes = size_t{16} << 10;

  struct Path {
    std::vector<std::byte> buffer;
    size_t begin = 0, end = 0;    ///< of the bytes in the buffer that were not taken
    PutFrame frame;               ///< the last one
    bool waits = false;           ///< `frame` does not take effect yet
    std::byte* target = nullptr;  ///< of the payload; null: it goes nowhere
    size_t left = 0;              ///< bytes of payload that have not arrived
    uint32_t sequence = 0;        ///< of the next frame
    uint32_t worth = 0;           ///< frames taken that are no acknowledgements
  };

  void parse(uint32_t path);
  void take_payload(Path& path, size_t bytes);
  void take_frame(uint32_t path);
  void begin_put(uint32_t path);
  void put_inline(uint32_t path);
  void take_waiting(uint32_t path);
  bool take_effect(const PutFrame& frame);
  bool effect_of_waiting();
  void landed(uint32_t path);
  bool is_due(const PutFrame& frame) const;
  /// Returns where a range begins, or null after a refusal.
  std::byte* target_of(const PutFrame& frame, uint64_t offset, uint64_t bytes);
  void refuse(uint32_t queue, NetworkCheck check, const NetworkRefusal& refusal);

  const Options options_;
  const RegisteredRegions& regions_;
  ReceiverListener& listener_;
  std::vector<Path> paths_;
  std::vector<PathCounts> landed_;  ///< [queues]
  std::vector<bool> ended_;         ///< [queues] one of its requests was refused
  std::vector<PutFrame> waiting_;   ///< signals and questions, where frames are acknowledged
  std::vector<std::byte> nowhere_;
};

}  // namespace tokenyard
