/// An ordered byte stream to and from one peer that never blocks: all that algorithms know of
/// transports. Shared memory, TCP and the simulator's network implement it.
///
/// Invariant: a channel belongs to one group, lane and epoch, and ends with its epoch; none of its
/// bytes is seen afterwards.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/interfaces/words.hpp"

namespace tokenyard::collectives {

/// Collectives and point-to-point messages of a group use separate lanes, so neither waits for the
/// other.
enum class Lane : uint8_t { collective, point_to_point };

/// Number of arrived bytes that can always be read in place at once.
inline constexpr size_t kArrivedInOnePiece = 64 << 10;

class Channel {
 public:
  virtual ~Channel() = default;

  /// Takes as many of `bytes` as fit, and returns their number. The caller may change those bytes;
  /// it must offer the rest again from the same address, because the peer may be reading it.
  virtual size_t send_some(std::span<const std::byte> bytes) = 0;
  /// Fills `into` with arrived bytes, in order, and returns their number.
  virtual size_t receive_some(std::span<std::byte> into) = 0;
  /// Returns arrived bytes, at most `wanted`, to be read in place until `consume` or the next call
  /// on this channel; empty if nothing has arrived. Returns all that has arrived unless `wanted`
  /// exceeds kArrivedInOnePiece, so a caller may wait here for a complete header. Bytes are aligned
  /// as in the stream, up to 64, so padded frames have aligned elements.
  virtual std::span<const std::byte> arrived(size_t wanted) = 0;
  virtual void consume(size_t bytes) = 0;
  /// Returns whether arrived bytes are in memory already, so that `arrived` is free. If not,
  /// `receive_some` saves a copy for callers that need the bytes elsewhere.
  virtual bool in_place() const { return true; }

  /// Returns the number of bytes that send_some has taken since the start: an algorithm's cost.
  virtual uint64_t bytes_sent() const = 0;
};

/// Makes the channels of the current epoch. Both ends ask for a channel; until both have asked and
/// are connected, its send_some and receive_some return 0.
///
/// All calls except `sleep` and `wake` are made under the engine's lock.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Contact contact() const = 0;
  /// Ends all existing channels: from now on they return 0 whatever the peer does, and their memory
  /// and sockets are released with their last owner.
  virtual void begin_epoch(const View& view, const Contacts& contacts) = 0;

  virtual std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) = 0;
  /// Ends the channels of a group that all its ranks have closed, and releases their memory and
  /// sockets; sent bytes still arrive. No channel of this group is requested again.
  virtual void release(GroupId) {}
  /// Returns whether the peer shares memory with this rank; algorithms are chosen by it.
  virtual bool same_host(Slot peer) const = 0;
  /// Returns the number of a member's host (this rank's too), alike on all ranks. Transports that
  /// know only one host need not override it.
  virtual uint64_t host_of(Slot) const { return 0; }

  /// Looks at sockets and doorbells without waiting, so that channels make progress.
  virtual void poll() = 0;
  /// Announces that this process will sleep, so that peers ring its doorbell from now on. The
  /// caller must then look once more for bytes that arrived before, and only then `sleep`. Peers go
  /// on ringing, at a system call each, until `poll` is called after the sleep; so no thread should
  /// sleep here while another polls.
  virtual void prepare_to_sleep() = 0;
  /// Sleeps until a doorbell rings, a socket is ready, `wake` is called or the time is up. Needs no
  /// lock; one thread at a time.
  virtual void sleep(std::chrono::nanoseconds at_most) = 0;
  /// Ends the current sleep, or the next if none has begun. Callable from any thread.
  virtual void wake() = 0;
};

}  // namespace tokenyard::collectives
