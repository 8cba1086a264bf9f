/// The actors that access memory in a simulated run, and the knowledge of each.
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

/// Where a thread runs, as scopes see it. Host code is a block of its own, and in no GPU's scope.
struct Place {
  uint32_t rank = 0;
  uint32_t block = 0;  ///< numbered over the whole run, so that no two grids share one
  bool host = false;

  /// Of the GPU, or of the processor, that it runs on.
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
/// Two strong operations may synchronise only if the scope of each includes the other's thread.
inline bool mutually_included(Scope a_scope, const Place& a, Scope b_scope, const Place& b) {
  return includes(a_scope, a, b) && includes(b_scope, b, a);
}

enum class ActorKind : uint8_t { thread, host, bulk_source, bulk_target, completion };

/// One life of a thread or agent: what reports name. Actors are never reused; slots are.
struct Actor {
  ActorKind kind;
  Slot slot;
  Place place;
  simt::ThreadName name;  ///< of an agent: the thread it copies for
  std::string label;      ///< of host code: "host", "stream 1"
};

/// "thread 33 (warp 1) of block 0 of rank 2".
std::string describe(const Actor& actor);

/// The knowledge that a release passes to the thread that acquires it.
struct Release {
  Clock known, async;
  Scope scope;
  Place place;
};
using ReleaseRef = std::shared_ptr<const Release>;

struct History;

/// A release that was read by a relaxed load: a later fence, or an acquire of the same location,
/// may still synchronise with it.
struct Observed {
  const History* where;
  ReleaseRef release;
};

/// A thread that runs, or host code.
///
/// `known` is the thread's whole view of memory: which writes it must not read behind follows from
/// which actors' epochs it knows (history.hpp), so there is no second view to keep. `async` is the
/// part of it that has crossed a proxy fence on its way here: what a bulk copy issued now may rely
/// on.
struct ThreadState {
  uint32_t actor = 0;
  Slot slot = 0;
  Epoch epoch = 1;  ///< of what it does now; nobody knows it before the next release
  Place place;
  Clock known, async;
  ReleaseRef fences[3];  ///< by scope: the last fence, which makes later relaxed stores releases
  std::vector<Observed> observed;

  /// Accesses of this epoch that the race detector has seen. Repeating one adds nothing: any access
  /// that raced with it in between was compared with its record, which is kept as long as the epoch
  /// lasts.
  struct Recent {
    const void* at = nullptr;
    uint32_t bytes = 0;
    Epoch epoch = 0;
    AccessKind kind{};
    Scope scope{};
    bool operator==(const Recent&) const = default;
  };
  std::array<Recent, 32> recent{};

  /// Releases acquired last: knowledge only grows, so acquiring one again, as a thread does that
  /// polls, changes nothing.
  std::array<ReleaseRef, 8> acquired;

  bool knows(Slot of, Epoch at) const { return of == slot || known.of(of) >= at; }
  /// Closes the epoch: everything done so far is in the result, nothing done later will be.
  ReleaseRef release(Scope scope) {
    known.raise(slot, epoch);
    ++epoch;
    return std::make_shared<Release>(Release{known, async, scope, place});
  }
};

}  // namespace tokenyard::simulation
