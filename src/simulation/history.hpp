/// The values that strong accesses may find at one place, and the rules by which they choose.
///
/// A place that strong accesses use keeps its stores in coherence order. A thread may read any of
/// them that is not behind one it already knows of; a store may take any place behind those it
/// knows of. Knowing is happens-before: a thread knows a store if it knows the epoch in which it
/// was made, or the epoch in which some thread read it. So the clocks are the threads' views, and
/// this is the view machine of the promising semantics (Kang et al., POPL 2017) without promises,
/// which is the PTX model without load buffering:
///
///     coherence           a store known to the writer comes before the writer's
///     causality           a load finds nothing behind a store known to the reader
///     atomicity           no store ever comes between a read-modify-write and what it read
///     synchronisation     an acquire that reads a release, or a chain of read-modify-writes from
///                         it, takes its clock, if their scopes include each other
///
/// Loads that nobody orders may disagree about the order of stores by different threads (IRIW), as
/// PTX allows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulation/actor.hpp"
#include "simulation/policy.hpp"

namespace tokenyard::simulation {

using Value = std::array<std::byte, 16>;

/// One store in a place's history.
struct Message {
  Value value{};
  Slot slot = 0;
  Epoch epoch = 0;  ///< 0: by nobody in particular, known to all
  Scope scope = Scope::sys;
  Place place;
  bool atomic_with_previous = false;  ///< a read-modify-write that read the message before it
  uint64_t born = 0;                  ///< step
  CodeAddress where = nullptr;
  std::vector<ReleaseRef> releases;  ///< what acquiring it synchronises with
  struct Reader {
    Slot slot;
    Epoch epoch;
  };
  std::vector<Reader> readers;  ///< threads that have read it, and so pass on that it exists
};

/// The context of a decision: the run's random numbers and clock.
struct Chance {
  Random& random;
  const Policy& policy;
  uint64_t step;
};

/// The stores of one place, oldest first. The newest in coherence order is also what lies in real
/// memory, so that ordinary accesses, which must be ordered after all of them, find it there.
struct History {
  std::byte* address;
  uint32_t bytes;
  History* next_in_cell = nullptr;
  bool unsettled = false;  ///< listed as having more than one message
  std::vector<Message> messages;
  /// The last release of each thread that made one: its later relaxed stores here carry it too.
  struct LastRelease {
    Slot slot;
    ReleaseRef release;
  };
  std::vector<LastRelease> last_releases;

  /// Takes over what ordinary stores and copies have put into real memory since.
  void catch_up(const Chance& chance);
  /// The message that this thread's load finds; the load is noted.
  const Message& read(const ThreadState& me, Scope scope, const Chance& chance);
  /// The message that this thread's read-modify-write finds: `append_after` it, or, if nothing is
  /// to be written, `note` it.
  size_t read_for_update(const ThreadState& me, const Chance& chance);
  void note(size_t index, const ThreadState& me, Scope scope);
  /// Whether a message was put behind every other.
  bool insert(Message message, const ThreadState& me, const Chance& chance);
  bool append_after(size_t index, Message message);
  /// The newest becomes the only one. False if it was already.
  bool settle();

 private:
  size_t oldest_readable(const ThreadState& me) const;
  void forget(size_t count);
  void write_through();
};

}  // namespace tokenyard::simulation
