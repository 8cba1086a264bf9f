/// A job whose ranks die, are evicted and grow in number, while replacements wait already or come
/// late, and whose survivors go on by calls of their own, each in its own time. Every call must
/// end, and all work must get done.
///
///     a failure        rank 0    rank 2              rank 3, late
///     lost 1           replace 1                     (computes)
///     1' is in         done      recover: at once    (computes)
///     lost 2           replace 2                     aborted: replace 2, replace 1: at once
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/simulated/with_engine.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::collectives::simulated {

struct DrillMutations {
  membership::Mutant protocol = membership::Mutant::none;
  std::vector<GoesOnBy> ways = {};  ///< instead of the seed's draw
};

class Drill {
 public:
  explicit Drill(simulation::SeedRun& run, const DrillMutations& mutations = {})
      : run_(run),
        random_(run.random),
        job_(draw(mutations), random_.next(), run.trace, with_engine()) {}

  void happen() {
    job_.witness.draw_faults(job_.options.membership.ballot);
    const uint32_t blows = run_.option("blows", random_.between(1, 3));
    Instant when{};
    for (uint32_t i = 0; i < blows; ++i) {
      // Usually a failure comes during the recovery from the previous one.
      when = i > 0 && random_.chance(700) ? when + job_.some(milliseconds(30))
                                          : job_.some(milliseconds(200));
      job_.schedule.at(job_.schedule.now() + when, [this] { strike(); });
    }
    job_.run(milliseconds(300));
    finish();
  }

 private:
  static int64_t ms(Instant time) { return time / milliseconds(1); }

  JobOptions draw(const DrillMutations& mutations) {
    JobOptions options;
    options.ranks = run_.option("ranks", random_.between(3, 6));
    options.slots_max = options.ranks + 2;
    options.membership.witness = run_.option("witness", random_.chance(512));
    options.membership.silence = silence_ = options.membership.heartbeat * random_.between(4, 10);
    options.operations.target = run_.option("operations", random_.between(4, 16));
    options.operations.raises = true;
    options.membership.mutant = mutations.protocol;
    options.yields_slot = false;
    options.wish_most = milliseconds(random_.between(0, 20));
    options.think_most = milliseconds(random_.between(1, 40));
    options.delay_most =
        random_.chance(700) ? milliseconds(1) : milliseconds(random_.between(1, 30));
    options.freeze_most = random_.chance(700) ? Instant{} : milliseconds(random_.between(1, 20));
    options.grow_at = run_.option("grow_at", random_.chance(300) ? random_.between(1, 3) : 0);
    options.recovery.late_most =
        random_.chance(300) ? Instant{} : milliseconds(random_.between(1, 200));
    run_.option("late_ms", ms(options.recovery.late_most));
    options.recovery.seed = random_.next();
    const std::vector<std::vector<GoesOnBy>> ways = {
        {GoesOnBy::replace},
        {GoesOnBy::recover_and_wait},
        {GoesOnBy::replace, GoesOnBy::recover_and_wait},
        {GoesOnBy::recover},
        {GoesOnBy::recover, GoesOnBy::replace, GoesOnBy::recover_and_wait},
        {GoesOnBy::shrink},
    };
    const uint32_t way = run_.option("way", random_.below(static_cast<uint32_t>(ways.size())));
    options.recovery.ways = mutations.ways.empty() ? ways[way] : mutations.ways;
    // A deadline stops the world's group; of other groups, not all ranks would know.
    if (run_.option("deadlines", random_.chance(200))) {
      options.deadline = silence_ * random_.between(1, 3);
    } else if (random_.chance(400)) {
      options.groups.push_back(some_slots(options.ranks));
    }
    return options;
  }

  std::vector<Slot> some_slots(uint32_t ranks) {
    std::vector<Slot> slots;
    for (Slot slot = 0; slot < ranks; ++slot) {
      if (random_.chance(600)) slots.push_back(slot);
    }
    if (slots.empty()) slots.push_back(0);
    return slots;
  }

  bool may_spare() {
    const membership::Quorum quorum(job_.newest(), job_.options.membership.witness,
                                    membership::Mutant::none);
    return job_.survivors().size() > quorum.needed;
  }

  void strike() {
    const std::vector<Process*> survivors = job_.survivors();
    if (survivors.empty() || !may_spare()) return;
    Process& victim = *survivors[random_.below(static_cast<uint32_t>(survivors.size()))];
    Process& other = *survivors[random_.below(static_cast<uint32_t>(survivors.size()))];
    // A spare process waits before the failure, or comes during it.
    for (uint32_t spares = random_.below(3); spares > 0; --spares)
      job_.spawn(victim.self.slot, other);
    switch (random_.below(4)) {
      case 0:
        job_.get_stuck(victim, job_.some(silence_ * 4));
        break;
      case 1:
        if (&victim != &other)
          static_cast<EngineProgram&>(*other.engine).calls().evict(victim.self.slot);
        break;
      default:
        job_.kill(victim, random_.chance(900));
    }
  }

  /// Starts a process for every empty slot, and for those that the job grows by.
  void send_newcomers() {
    if (job_.survivors().empty()) return;
    const uint32_t slots = job_.options.grow_at > 0 ? job_.options.slots_max : job_.newest().slots;
    for (Slot slot = 0; slot < slots; ++slot) {
      if (job_.newest().at(slot)) continue;
      const bool waits =
          std::any_of(job_.processes.begin(), job_.processes.end(), [&](const auto& process) {
            return process->self.slot == slot && process->running() && process->waits_since;
          });
      if (!waits) job_.spawn(slot, *job_.survivors().front());
    }
  }

  std::string unfinished() {
    for (const auto& process : job_.processes) {
      if (!process->running() || !job_.newest().contains(process->self)) continue;
      const Slot slot = process->self.slot;
      if (process->runtime.view() != job_.newest())
        return fmt::format("slot {} is in epoch {}", slot, process->runtime.view().epoch);
      auto& program = static_cast<EngineProgram&>(*process->engine);
      if (program.calls().active())
        return fmt::format("a call of slot {} has not ended: {}", slot, program.calls().awaited());
      for (const GroupId group : program.groups()) {
        if (program.committed(group) < job_.options.operations.target)
          return fmt::format("slot {} is at operation {} of group {}", slot,
                             program.committed(group), group);
      }
    }
    return "";
  }

  void finish() {
    run_.trace.note("nothing more happens");
    job_.witness.faults = {};
    for (const auto& process : job_.processes) job_.get_unstuck(*process);
    Instant bound = silence_ * 12 + job_.options.recovery.late_most * 12 + std::chrono::seconds(2);
    if (job_.options.deadline < std::chrono::hours(1))
      bound += job_.options.deadline * 8 + std::chrono::seconds(10);
    const Instant end = job_.schedule.now() + bound;
    std::string what;
    while (job_.schedule.now() < end) {
      send_newcomers();
      job_.run(milliseconds(50));
      what = unfinished();
      if (what.empty()) return;
    }
    const membership::Quorum quorum(job_.newest(), job_.options.membership.witness,
                                    membership::Mutant::none);
    if (job_.survivors().size() + (quorum.witness ? 1 : 0) < quorum.needed) return;
    throw Broken(fmt::format("recovery: {} ms after the last blow {} ({})", ms(bound), what,
                             text(job_.newest())));
  }

  simulation::SeedRun& run_;
  Random& random_;
  Instant silence_{};
  Job job_;
};

}  // namespace tokenyard::collectives::simulated
