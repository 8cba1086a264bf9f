/// The actors that access memory in a simulated run, and what each knows.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simt/memory.hpp"
#include "simulation/access_record.hpp"
#include "simulation/clock.hpp"

namespace tokenyard::simulation {

/// A thread's place for scopes. Each thread of host code is a block of its own, in no GPU's scope.
struct Place {
  uint32_t rank = 0;
  uint32_t block = 0;  ///< numbered over the whole run, so that no two grids share one
  bool host = false;

  /// Returns the number of the GPU or processor that it runs on.
  uint32_t device() const { return rank * 2 + (host ? 1 : 0); }
};

/// Returns whether `scope`, named by a thread at `from`, includes a thread at `to`.
inline bool includes(Scope scope, const Place& from, const Place& to) {
  switch (scope) {
    case Scope::block:
      return from.block == to.block;
    case Scope::gpu:
      return from.device() == to.device();
    case Scope::sys:
      return true;
  }
  return false;
}
/// Returns whether the scope of each operation includes the other's thread: only then may two
/// strong operations synchronise.
inline bool mutually_included(Scope a_scope, const Place& a, Scope b_scope, const Place& b) {
  return includes(a_scope, a, b) && includes(b_scope, b, a);
}

enum class ActorKind : uint8_t { thread, host, bulk_source, bulk_target, completion };

/// One lifetime of a thread or copying agent, as reports name it. Slots are reused, actors are not.
struct Actor {
  ActorKind kind;
  Slot slot;
  Place place;
  simt::ThreadName name;  ///< for an agent: the thread that it copies for
  std::string label;      ///< for host code only: "host", "stream 1"
};

/// Returns "thread 33 (warp 1) of block 0 of rank 2".
std::string describe(const Actor& actor);

/// The knowledge that a release passes to a thread that acquires it.
struct Release {
  Clock known, async;
  Scope scope;
  Place place;
};
using ReleaseRef = std::shared_ptr<const Release>;

struct History;

/// A release whose store was read by a relaxed load: a later fence, or an acquire of the same
/// location, may still synchronise with it.
struct Observed {
  const History* where;
  ReleaseRef release;
};

/// The state of a running thread, or of host code.
///
/// `known` is the thread's whole view of memory: the epochs that it knows determine the oldest
/// stores that it may read (history.hpp), so no second view is kept. `async` is the part of `known`
/// that has crossed a proxy fence on its way here: a bulk copy issued now is ordered after it.
struct ThreadState {
  uint32_t actor = 0;
  Slot slot = 0;
  Epoch epoch = 1;  ///< of its current accesses; no other thread knows it before the next release
  Place place;
  Clock known, async;
  ReleaseRef fences[3];  ///< by scope: last fence, which makes later relaxed stores releases
  std::vector<Observed> observed;

  /// Accesses of this epoch that the race detector has checked. A repetition need not be checked:
  /// any access that raced with it since was compared with the record, which is kept until the
  /// epoch ends.
  struct Recent {
    const void* at = nullptr;
    uint32_t bytes = 0;
    Epoch epoch = 0;
    AccessKind kind{};
    Scope scope{};
    bool operator==(const Recent&) const = default;
  };
  std::array<Recent, 32> recent{};

  /// The releases acquired last. Knowledge only grows, so acquiring one again, as polling threads
  /// do, changes nothing.
  std::array<ReleaseRef, 8> acquired;

  bool knows(Slot of, Epoch at) const { return of == slot || known.of(of) >= at; }
  /// Ends the epoch. The result covers everything that the thread has done, and nothing later.
  ReleaseRef release(Scope scope) {
    known.raise(slot, epoch);
    ++epoch;
    return std::make_shared<Release>(Release{known, async, scope, place});
  }
};

}  // namespace tokenyard::simulation
