/// How a proxy reaches the ranks behind its queues. A transport carries puts and signals that the
/// proxy has checked at this end; the other end's checks are its own.
///
///   connect    once, collective, before any other call
///   post       a request, in the order of its queue; the sources stay until `completed`
///   settle     asks whether a queue's requests so far have taken effect
///   poll       moves bytes, and reports what has happened
///   close      sends what it can, and lets go of everything
///
/// All calls but the constructor and `connect` come from the proxy's thread, and so do those of the
/// listener, only within `post`, `settle`, `withdraw` and `poll`.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/network_request.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

/// A request that has passed the checks of its own rank.
struct PostedRequest {
  uint32_t peer, queue;  ///< queue: its number among those to the peer
  uint32_t turn;         ///< the count of the queue's requests before it
  NetworkRequest::Kind kind;
  NetworkTarget target;
  uint64_t addend = 0;  ///< signal
  /// The sources, one behind the other. Those of an inline put are valid during `post` only.
  std::array<std::span<const std::byte>, 2> pieces{};

  uint64_t bytes() const { return pieces[0].size() + pieces[1].size(); }
};

class TransportListener {
 public:
  virtual ~TransportListener() = default;
  /// The sources of a request may be reused. Requests of a queue may complete in any order.
  virtual void completed(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  /// All requests of a queue before `turn` have taken effect.
  virtual void settled(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  /// The peer has refused a request of a queue.
  virtual void refused(uint32_t peer, uint32_t queue, NetworkCheck check,
                       const NetworkRefusal& refusal) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  ///< "tcp"

  virtual void set_listener(TransportListener& listener) = 0;
  /// Takes a request. False: there is no room now, or no connection; the proxy offers it again.
  virtual bool post(const PostedRequest& request) = 0;
  /// False: as above.
  virtual bool settle(uint32_t peer, uint32_t queue, uint32_t turn) = 0;
  /// Returns whether anything has moved.
  virtual bool poll() = 0;
  /// Sleeps until something may have arrived or moved, `waker` is readable, or the time has passed.
  virtual void sleep(std::chrono::nanoseconds at_most, int waker) = 0;

  /// Opens memory to peers that hold the key. Throws OsError if a network card cannot use it.
  virtual void register_memory(MemoryKey key, std::span<std::byte> memory) = 0;
  /// The same for memory of the GPU, which peers' long puts alone may write: no inline puts and
  /// signals, which the host stores. Only where the transport's maker says that it can be.
  virtual void register_gpu_memory(MemoryKey key, std::span<std::byte> memory);
  /// Closes a region again: puts touch it no more once it has no holder.
  virtual void withdraw(uint32_t region) = 0;
  /// Returns a rank whose puts, or puts to which, may still touch a region that was withdrawn.
  virtual std::optional<uint32_t> holder_of(uint32_t /*region*/) const { return std::nullopt; }
  /// Forgets what is under way to a rank that is gone; nothing of it is reported any more. Puts
  /// and signals that a rank sent before it `left` still take effect.
  virtual void drop(uint32_t peer, bool left) = 0;
  /// Returns why a peer cannot be reached, if its connection has broken.
  virtual std::optional<std::string> broken(uint32_t peer) const = 0;
  /// Returns for how long a peer has taken nothing and said nothing although something waits for
  /// it. Time in which the proxy's thread did not run does not count.
  virtual std::chrono::nanoseconds silent_for(uint32_t /*peer*/) const { return {}; }
  /// Returns whether a broken connection may be made anew: then its requests are still under way.
  virtual bool may_return(uint32_t /*peer*/) const { return false; }
  virtual void close() = 0;
  /// Returns the connections, if it has any. Any thread may call it.
  virtual std::vector<NetworkPath> paths() const { return {}; }
};

inline void Transport::register_gpu_memory(MemoryKey, std::span<std::byte>) {
  throw InternalError(name() + " takes no memory of a GPU");
}

}  // namespace tokenyard
