/// One simulated process of a job: the real membership state machine, the stand-in for the engine,
/// and between them the work that `control` does in a real process.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/simulated/program.hpp"
#include "collectives/simulated/virtual_network.hpp"
#include "membership/membership.hpp"

namespace tokenyard::collectives::simulated {

class Process {
 public:
  /// Services of the job for the process.
  struct Outside {
    std::function<void(const membership::Send&)> send;
    std::function<void(const membership::AskWitness&)> ask_witness;
    std::function<void(Verdict)> install;  ///< tells the engine and the checkers
    std::function<void()> freeze;          ///< tells the engine now or soon; then `frozen`
    std::function<void(const char* what, Epoch)> over;
  };

  Process(ProcessId id, Member self, View first, const membership::MembershipOptions& options,
          Schedule& schedule, Instant clock_ahead, Outside outside)
      : id(id),
        self(self),
        runtime(self, std::move(first), options),
        schedule_(schedule),
        clock_ahead_(clock_ahead),
        outside_(std::move(outside)) {}

  const ProcessId id;
  const Member self;
  membership::Membership runtime;
  std::unique_ptr<Program> engine;
  Instant stuck_until{};               ///< its program calls no operation before
  std::optional<Instant> waits_since;  ///< a newcomer: since when

  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  bool over() const { return over_; }
  bool running() const { return alive_ && !stopped_ && !over_; }
  /// Its own clock: processes do not start at the same time.
  Instant now() const { return schedule_.now() + clock_ahead_; }

  /// Delivers an event, now or when the process wakes.
  void input(std::function<void()> action) {
    if (!alive_) return;
    if (stopped_) {
      asleep_.push_back(std::move(action));
      return;
    }
    action();
    pump();
  }
  void kill() {
    alive_ = false;
    engine->died();
  }
  void stop() {
    stopped_ = true;
    engine->stopped();
  }
  void wake(bool ticks_first) {
    if (!std::exchange(stopped_, false) || !alive_) return;
    engine->woke();
    if (ticks_first) input([this] { runtime.tick(now()); });
    for (std::function<void()>& action : std::exchange(asleep_, {})) input(std::move(action));
    input([this] { runtime.tick(now()); });
  }

  void pump() {
    for (membership::Effect& effect : runtime.take_effects()) {
      if (auto* send = std::get_if<membership::Send>(&effect)) {
        outside_.send(*send);
      } else if (auto* ask = std::get_if<membership::AskWitness>(&effect)) {
        outside_.ask_witness(*ask);
      } else if (std::holds_alternative<membership::Freeze>(effect)) {
        outside_.freeze();
      } else if (auto* install = std::get_if<membership::Install>(&effect)) {
        waits_since.reset();
        outside_.install(std::move(install->verdict));
      } else if (auto* fenced = std::get_if<membership::Fenced>(&effect)) {
        over_ = true;
        engine->fenced(fenced->epoch, fenced->why);
        outside_.over("fenced", fenced->epoch);
      } else if (auto* missing = std::get_if<membership::QuorumMissing>(&effect)) {
        engine->quorum_missing(missing->answering, missing->needed);
      } else {
        over_ = true;
        engine->fenced(0, "left");
        outside_.over("left", runtime.view().epoch);
      }
    }
    plan_tick();
  }

 private:
  void plan_tick() {
    const Instant wanted = runtime.next_tick();
    if (over_ || wanted == Instant::max()) return;
    const Instant when = std::max(wanted - clock_ahead_, schedule_.now());
    if (planned_ && *planned_ <= when) return;
    planned_ = when;
    schedule_.at(when, [this, when] {
      if (planned_ != when) return;
      planned_.reset();
      if (!stopped_) input([this] { runtime.tick(now()); });
    });
  }

  Schedule& schedule_;
  const Instant clock_ahead_;
  const Outside outside_;
  bool alive_ = true, stopped_ = false, over_ = false;
  std::optional<Instant> planned_;
  std::deque<std::function<void()>> asleep_;
};

}  // namespace tokenyard::collectives::simulated
