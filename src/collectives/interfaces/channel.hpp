/// An ordered stream of bytes to one peer and from it, which never blocks: the one thing that
/// algorithms know of transports. Shared memory, TCP and the simulator's network are its three
/// bodies. A channel belongs to one group, lane and epoch; with its epoch it ends, and nothing of
/// it is seen again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/interfaces/words.hpp"

namespace tokenyard::collectives {

/// Collectives and point-to-point messages of a group do not wait for one another.
enum class Lane : uint8_t { collective, point_to_point };

/// How much of what has arrived can be read in place at once.
inline constexpr size_t kArrivedInOnePiece = 64 << 10;

class Channel {
 public:
  virtual ~Channel() = default;

  /// Takes as much of `bytes` as there is room for, and says how much. Taken bytes may be changed;
  /// what is left comes again with the next call, from the same place: the peer may be reading it.
  virtual size_t send_some(std::span<const std::byte> bytes) = 0;
  /// Fills `into` with what has arrived, in order, and says how much that was.
  virtual size_t receive_some(std::span<std::byte> into) = 0;
  /// What has arrived, at most `wanted` bytes, to be read in place until `consume` or the next call
  /// of this channel. Never less than has arrived but where `wanted` exceeds kArrivedInOnePiece, so
  /// whoever waits for a header may wait for all of it here. Empty: nothing has arrived. Bytes lie
  /// as aligned as they are in the stream, up to 64: whoever pads frames finds elements aligned.
  virtual std::span<const std::byte> arrived(size_t wanted) = 0;
  virtual void consume(size_t bytes) = 0;
  /// Whether what has arrived lies in memory anyway, and `arrived` costs nothing. Otherwise whoever
  /// only wants it elsewhere spares a copy by `receive_some`.
  virtual bool in_place() const { return true; }

  /// Bytes handed over by send_some since the beginning: what an algorithm cost.
  virtual uint64_t bytes_sent() const = 0;
};

/// Makes channels of the current epoch. Both ends ask for a channel; until both have, and have
/// found one another, its send_some and receive_some say 0.
///
/// Used under the engine's lock, but for `sleep` and `wake`.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual Contact contact() const = 0;
  /// Ends all channels there are: they say 0 from now on, whatever the other end does, and their
  /// memory and sockets are gone once nobody holds them.
  virtual void begin_epoch(const View& view, const Contacts& contacts) = 0;

  virtual std::shared_ptr<Channel> channel(GroupId group, Lane lane, Slot peer) = 0;
  /// Ends the channels of a group that all its ranks have closed, and gives back their memory and
  /// sockets; what was sent still arrives. Nobody asks for channels of this group again.
  virtual void release(GroupId) {}
  /// Whether the peer shares memory with this rank: what algorithms choose by.
  virtual bool same_host(Slot peer) const = 0;
  /// A number of the host that a member is on, this rank too, alike on all ranks. A transport that
  /// knows of one host only may leave it.
  virtual uint64_t host_of(Slot) const { return 0; }

  /// Looks at sockets and bells without waiting, so that channels make progress.
  virtual void poll() = 0;
  /// Announces that this process is about to sleep, so that peers ring its bell from now on. What
  /// arrived before must be looked for once more, in the channels, between this and `sleep`. Peers
  /// ring until `poll` is called after a sleep, and a bell costs them a system call: nobody should
  /// be asleep in here while another thread polls.
  virtual void prepare_to_sleep() = 0;
  /// Sleeps until a bell rings, a socket is ready, `wake` is called, or the time is up. Needs no
  /// lock; one thread at a time.
  virtual void sleep(std::chrono::nanoseconds at_most) = 0;
  /// Ends `sleep`, from any thread; one that has not begun yet, too.
  virtual void wake() = 0;
};

}  // namespace tokenyard::collectives
