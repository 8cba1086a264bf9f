/// The values that strong accesses may find at one location, and the rules by which they choose.
///
/// A location used by strong accesses keeps its stores in coherence order. A thread may read any
/// store that is not older than one it already knows; a new store may take any position after the
/// stores that its thread knows. Knowing is happens-before: a thread knows a store if it knows the
/// epoch in which the store was made, or one in which some thread read it. The clocks are thus the
/// threads' views, and this is the view machine of the promising semantics (Kang et al., POPL 2017)
/// without promises, which is the PTX model without load buffering:
///
///     coherence           a store known to a writer precedes the writer's own
///     causality           a load returns no store older than one known to the reader
///     atomicity           no store comes between a read-modify-write and the store that it read
///     synchronisation     an acquire that reads a release, or a chain of read-modify-writes from
///                         it, takes its clock, if their scopes include each other
///
/// Unordered loads may disagree about the order of stores by different threads (IRIW), as PTX
/// allows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulation/actor.hpp"
#include "simulation/policy.hpp"

namespace tokenyard::simulation {

using Value = std::array<std::byte, 16>;

/// One store in a location's history.
struct Message {
  Value value{};
  Slot slot = 0;
  Epoch epoch = 0;  ///< 0: the store is known to all threads
  Scope scope = Scope::sys;
  Place place;
  bool atomic_with_previous = false;  ///< a read-modify-write, which read the previous message
  uint64_t born = 0;                  ///< memory step of the store
  CodeAddress where = nullptr;
  std::vector<ReleaseRef> releases;  ///< releases that an acquire of it synchronises with
  struct Reader {
    Slot slot;
    Epoch epoch;
  };
  std::vector<Reader> readers;  ///< threads that read it; knowing their epochs is knowing the store
};

/// The context of a random decision: the run's generator, settings and step counter.
struct Chance {
  Random& random;
  const Policy& policy;
  uint64_t step;
};

/// The stores of one location, oldest first in coherence order. The newest is also in real memory,
/// where ordinary accesses, which must be ordered after all of them, find it.
struct History {
  std::byte* address;
  uint32_t bytes;
  History* next_in_cell = nullptr;
  bool unsettled = false;  ///< is in ModelMemory's list of histories with more than one message
  std::vector<Message> messages;
  /// The last release of each releasing thread, which its later relaxed stores here carry too.
  struct LastRelease {
    Slot slot;
    ReleaseRef release;
  };
  std::vector<LastRelease> last_releases;

  /// Adopts the value that ordinary stores or copies have since put into real memory.
  void catch_up(const Chance& chance);
  /// Chooses the message that this thread's load returns, and notes the load.
  const Message& read(const ThreadState& me, Scope scope, const Chance& chance);
  /// Chooses the message that this thread's read-modify-write reads. The caller then calls
  /// `append_after` with it or, if it writes nothing, `note`.
  size_t read_for_update(const ThreadState& me, const Chance& chance);
  void note(size_t index, const ThreadState& me, Scope scope);
  /// Inserts a store's message. Returns whether it is the newest; so does append_after.
  bool insert(Message message, const ThreadState& me, const Chance& chance);
  bool append_after(size_t index, Message message);
  /// Drops all messages but the newest. Returns false if there were no others.
  bool settle();

 private:
  size_t oldest_readable(const ThreadState& me) const;
  void forget(size_t count);
  void write_through();
};

}  // namespace tokenyard::simulation
