/// An object on a job's world goes on when the job does. "Exchange" here also means collectives on
/// device tensors. All that an exchange has in one world is a session:
///
///     call -> Sessions::for_call -> session of the newest epoch -> kernels, memory, routes
///
/// Once a recovery call of the job has returned on this rank (Recoveries), the next collective call
/// compares: if the membership is of a later epoch than the world, or the session has failed, the
/// world goes on (go_on), and the exchange makes a session in it with the same options. All ranks
/// make that call, so a session is made collectively, as the constructor makes the first one, and a
/// newcomer's constructor meets it. Exchanges that share a World go on with the first of them, and
/// each makes its session with its own next call.
///
/// The next session refuses, by name, routes and batches of this one. Their memory lives as long as
/// somebody holds some of it. A session that a CUDA graph has captured is kept with its world,
/// since a replay uses its addresses, and is spoilt, so that a replay fails and is noticed.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "fabric/world_access.hpp"
#include "tokenyard/stream.hpp"

namespace tokenyard {

/// Throws InvalidArgument if `data` lies in the arena of a world of `gone`.
void refuse_arena_of_before(const char* argument, const void* data,
                            const std::vector<std::weak_ptr<World>>& gone, const World& now);

/// Throws InvalidArgument if the stream is captured: an exchange cannot go on within a CUDA graph.
void refuse_capture(const World& world, Stream stream);

/// `Session` has a `world` (shared, pinned), `failed()`, `captured()` and `retire()`.
template <class Session>
class Sessions {
 public:
  /// `make(world, before)`: makes a session in a pinned world. Collective. `before`: the one that
  /// it follows, or null.
  template <class Make>
  Sessions(World& world, Make make)
      : world_(world), recoveries_(recoveries_of(world)), calls_(calls_so_far()) {
    if (recoveries_ != nullptr && is_behind(world_)) tokenyard::go_on(world_);
    now_ = make(WorldAccess::pinned(world_), static_cast<Session*>(nullptr));
  }

  World& world() const { return world_; }
  /// Returns the session of this rank's last collective call. Any thread may call it.
  std::shared_ptr<Session> now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  /// The same, for the thread that makes calls.
  Session& last() const { return *now_; }

  /// Returns whether the next collective call goes on. One atomic load, unless there was a
  /// recovery. `asked`: the caller goes on after every recovery, since all other ranks do: only
  /// some may know of a failure.
  bool must_go_on(bool asked = false) {
    if (recoveries_ == nullptr) return false;
    if (!are_same(*now_->world, world_)) return true;
    if (calls_so_far() == calls_) return false;
    if (asked || is_behind(*now_->world) || now_->failed()) return true;
    calls_ = calls_so_far();
    return false;
  }
  /// Goes on, if it must, with what `make` makes. Collective. The session before stays if that
  /// throws. Calls `change(before, now)` at the end. Throws InvalidArgument if it must while
  /// `stream`, that of the call, is captured into a CUDA graph.
  template <class Make, class Change>
  Session& for_call(std::optional<Stream> stream, Make make, Change change, bool asked = false) {
    if (!must_go_on(asked)) return *now_;
    if (stream) refuse_capture(*now_->world, *stream);
    go_on(make, change);
    return *now_;
  }
  /// Returns the sessions of before that CUDA graphs have captured.
  const std::vector<std::shared_ptr<Session>>& captured() const { return captured_; }
  /// Throws InvalidArgument for memory in the arena of a world of before.
  void require_not_gone(const char* argument, const void* data) const {
    if (data != nullptr && !gone_.empty())
      refuse_arena_of_before(argument, data, gone_, *now_->world);
  }

 private:
  uint64_t calls_so_far() const {
    return recoveries_ == nullptr ? 0 : recoveries_->calls.load(std::memory_order_acquire);
  }
  bool is_behind(const World& world) const {
    return membership_epoch_of(world) < recoveries_->epoch.load(std::memory_order_relaxed);
  }
  template <class Make, class Change>
  void go_on(Make make, Change change) {
    const uint64_t calls = calls_so_far();
    const bool another_has = !are_same(*now_->world, world_) && !is_behind(world_);
    // In a world in which this rank alone has failed to make its session, nobody makes one again.
    const bool failed_there = unmade_ && are_same(*unmade_, world_);
    if (!another_has || failed_there) tokenyard::go_on(world_);
    unmade_ = WorldAccess::pinned(world_);
    std::shared_ptr<Session> next = make(unmade_, now_.get());
    unmade_.reset();
    const std::shared_ptr<Session> before = now_;
    {
      const std::lock_guard lock(mutex_);
      std::swap(now_, next);
    }
    calls_ = calls;
    std::erase_if(gone_, [](const auto& world) { return world.expired(); });
    gone_.push_back(before->world);
    // First, since its replays use its memory whatever fails here.
    if (before->captured()) captured_.push_back(before);
    before->retire();
    change(*before, *now_);
  }

  World& world_;
  const Recoveries* const recoveries_;
  uint64_t calls_;            ///< recoveries that the session has seen
  mutable std::mutex mutex_;  ///< of a change of now_
  std::shared_ptr<Session> now_;
  std::vector<std::shared_ptr<Session>> captured_;
  std::vector<std::weak_ptr<World>> gone_;  ///< worlds of before, while somebody holds their memory
  std::shared_ptr<World> unmade_;           ///< the last world, if no session was made there
};

}  // namespace tokenyard
