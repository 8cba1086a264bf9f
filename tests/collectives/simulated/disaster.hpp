/// A job under failures drawn from a seed. First anything may happen, and no checker may complain;
/// then the faults end, and the remaining ranks must finish everything in bounded time.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "collectives/simulated/job.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::collectives::simulated {

struct Mutations {
  membership::Mutant protocol = membership::Mutant::none;
  StandInMutant stand_in = StandInMutant::none;
};

enum class Trouble : uint8_t {
  kill,        ///< connections break
  power_loss,  ///< no peer is notified
  stop,        ///< and wakes later
  cut,         ///< one direction between two ranks
  partition,   ///< some ranks from the others, in one or both directions
  slow,        ///< a rank's messages take long
  stuck,       ///< its program hangs, its heartbeats go on
  replace,     ///< a newcomer for a slot, usually an empty one
  grow,
  leave,
  no_witness,
  false_alarm,   ///< a rank suspects another without reason
  decider_dies,  ///< dies as soon as it knows how the epoch ends, when few others know
};
constexpr uint32_t kTroubles = 13;

class Disaster {
 public:
  /// Runs the stand-in for the engine, or the programs of `make_program`. `kinds`: only these
  /// failures happen; empty: the seed draws.
  Disaster(simulation::SeedRun& run, Mutations mutations, MakeProgram make_program = {},
           const std::vector<Trouble>& kinds = {}, uint32_t ranks_most = 16, bool may_last = true)
      : run_(run),
        random_(run.random),
        ranks_most_(ranks_most),
        may_last_(may_last),
        only_stuck_(run.option("only_stuck", kinds.empty() ? random_.chance(64)
                                                           : kinds == std::vector{Trouble::stuck})),
        kinds_(kinds.empty() ? draw_kinds() : kinds),
        job_(draw(mutations), random_.next(), run.trace, std::move(make_program)) {
    troubles_ = run_.option("troubles", random_.below(7));
    spares_quorum_ = run_.option("spares_quorum", !random_.chance(200));
    job_.witness.draw_faults(job_.options.membership.ballot);
    run_.option("witness_loses", job_.witness.faults.lost_of_1024);
    run_.option("witness_lags_ms", ms(job_.witness.faults.lag_most));
  }

  void happen() {
    Instant when{};
    for (uint32_t i = 0; i < troubles_; ++i) {
      // Often a failure comes right after another one, during its recovery.
      const bool soon = i > 0 && random_.chance(512);
      when = soon ? when + job_.some(milliseconds(10)) : job_.some(duration_);
      job_.schedule.at(job_.schedule.now() + when, [this] { trouble(); });
    }
    job_.run(duration_ + milliseconds(20));
    end_faults();
    recover();
  }
  Job& job() { return job_; }

 private:
  using Choices = std::vector<Instant>;

  Instant one_of(const Choices& choices) {
    return choices[random_.below(static_cast<uint32_t>(choices.size()))];
  }
  static int64_t ms(Instant time) { return time / milliseconds(1); }

  /// Draws a few kinds of failures per run, so that frequent kinds do not hide others.
  std::vector<Trouble> draw_kinds() {
    if (only_stuck_) return {Trouble::stuck};
    std::vector<Trouble> kinds;
    for (uint32_t kind = 0; kind < kTroubles; ++kind) {
      if (!random_.chance(350)) continue;
      for (uint32_t weight = random_.between(1, 4); weight > 0; --weight)
        kinds.push_back(static_cast<Trouble>(kind));
    }
    if (kinds.empty()) kinds.push_back(static_cast<Trouble>(random_.below(kTroubles)));
    return kinds;
  }

  JobOptions draw(Mutations mutations) {
    JobOptions options;
    options.ranks =
        run_.option("ranks", random_.chance(640) ? random_.between(2, std::min(ranks_most_, 5u))
                                                 : random_.between(2, ranks_most_));
    options.slots_max = options.ranks + random_.below(3);
    membership::MembershipOptions& membership = options.membership;
    membership.heartbeat = one_of({milliseconds(20), milliseconds(50), milliseconds(100)});
    membership.silence = membership.heartbeat * random_.between(4, 10);
    membership.ballot = one_of({milliseconds(5), membership.heartbeat, membership.heartbeat * 2});
    membership.witness = run_.option("witness", random_.chance(512));
    membership.evict_stalled = run_.option("evict_stalled", random_.chance(256));
    membership.mutant = mutations.protocol;
    silence_ = membership.silence;
    run_.option("silence_ms", ms(silence_));
    run_.option("ballot_ms", ms(membership.ballot));

    duration_ = silence_ * random_.between(1, 6);
    Operations::Options& operations = options.operations;
    operations.target = run_.option("operations", random_.between(3, 24));
    operations.only_full = run_.option("retry", random_.chance(300));
    operations.full = options.ranks;
    operations.raises = !operations.only_full && random_.chance(300);
    operations.mutant = mutations.stand_in;
    operations.knows_only_neighbours = random_.chance(300);
    options.think_most =
        random_.chance(128) ? Instant{} : duration_ * 2 / static_cast<int64_t>(operations.target);
    for (uint32_t i = random_.below(3); i > 0; --i) {
      std::vector<Slot> group;
      for (Slot slot = 0; slot < options.ranks; ++slot) {
        if (random_.chance(600)) group.push_back(slot);
      }
      if (!group.empty()) options.groups.push_back(group);
    }
    run_.option("groups", options.groups.size() + 1);
    options.delay_most =
        one_of({microseconds(200), milliseconds(2), milliseconds(20), silence_ / 4});
    options.freeze_most = one_of({Instant{}, Instant{}, milliseconds(1), membership.ballot * 3});
    options.witness_most = one_of({milliseconds(1), membership.ballot, silence_});
    // Time of the longest operations, of which every 600 bytes are acknowledged
    // (SimulatedTransport): with less they might never be done.
    const Instant needed = milliseconds(25) * static_cast<int64_t>(options.ranks);
    const auto some_deadline = [&] { return std::max(needed, silence_ * random_.between(1, 3)); };
    if (random_.chance(400)) options.deadline = some_deadline();
    options.through_codec = random_.chance(200);
    // Drawn from separate generators, so that other draws are the same with and without them.
    options.letters = run_.option("letters", Random(run_.seed ^ 0x1e77e25).chance(400));
    options.eager_one_in = run_.option("eager_one_in", Random(run_.seed ^ 0xea9e12).below(3));
    options.reunions = run_.option("reunions", Random(run_.seed ^ 0x6e0210).chance(500));
    leave_when_done_ = run_.option("leave_when_done", Random(run_.seed ^ 0x1ea7e5).chance(512));
    options.newcomers = std::any_of(kinds_.begin(), kinds_.end(), [](Trouble kind) {
      return kind == Trouble::replace || kind == Trouble::grow;
    });
    if (only_stuck_) {
      // No other rank is late for its operations.
      options.only_stuck_are_blamed = true;
      options.deadline = some_deadline();
      options.think_most = silence_ / 10;
      options.delay_most = options.freeze_most = milliseconds(2);
    }
    return options;
  }

  Process* anybody() {
    const std::vector<Process*> survivors = job_.survivors();
    if (survivors.empty()) return nullptr;
    return survivors[random_.below(static_cast<uint32_t>(survivors.size()))];
  }

  /// Returns whether the others could go on with one rank less.
  bool may_spare() {
    if (!spares_quorum_) return true;
    const membership::Quorum quorum(job_.newest(), job_.options.membership.witness,
                                    membership::Mutant::none);
    return job_.survivors().size() + (quorum.witness ? 1 : 0) > quorum.needed;
  }

  void later(Instant most, Schedule::Action action) {
    job_.schedule.at(job_.schedule.now() + job_.some(most), [this, action = std::move(action)] {
      if (!calm_) action();
    });
  }

  void trouble() {
    Process* const victim = anybody();
    if (calm_ || victim == nullptr) return;
    const Trouble kind = kinds_[random_.below(static_cast<uint32_t>(kinds_.size()))];
    run_.trace.event("trouble", victim->self.slot, 0, 0, static_cast<uint64_t>(kind));
    switch (kind) {
      case Trouble::kill:
      case Trouble::power_loss:
        if (may_spare()) job_.kill(*victim, kind == Trouble::kill);
        break;
      case Trouble::stop:
        job_.stop(*victim);
        later(silence_ * 3, [this, victim] { job_.wake(*victim); });
        break;
      case Trouble::cut:
        if (Process* const other = anybody(); other != victim) {
          job_.cut(*victim, *other);
          later(silence_ * 4, [this, victim, other] { job_.heal(*victim, *other); });
        }
        break;
      case Trouble::partition:
        part();
        break;
      case Trouble::slow:
        job_.slow_down(*victim, job_.some(silence_ * 2));
        later(silence_ * 3, [this, victim] { job_.slowness[victim->id] = {}; });
        break;
      case Trouble::stuck:
        job_.get_stuck(*victim, job_.some(silence_ * 4));
        break;
      case Trouble::replace:
        replace(random_.below(job_.options.ranks), *victim);
        break;
      case Trouble::grow:
        // With retry, ranks wait for every slot, and no process comes for a new slot that is lost.
        if (job_.options.slots_max > job_.options.ranks && !job_.options.operations.only_full)
          replace(job_.options.ranks + random_.below(job_.options.slots_max - job_.options.ranks),
                  *victim);
        break;
      case Trouble::leave:
        if (!may_spare()) break;
        if (leave_when_done_)
          job_.parting.insert(victim->self);
        else
          job_.leave(*victim);
        break;
      case Trouble::no_witness:
        job_.witness_dead = true;
        later(silence_ * 3, [this] { job_.witness_dead = false; });
        break;
      case Trouble::decider_dies:
        if (may_spare()) job_.kills_next_decider = true;
        [[fallthrough]];
      case Trouble::false_alarm:
        if (Process* const other = anybody(); other != victim) job_.abort_flag(*victim, *other);
        break;
    }
  }

  void part() {
    const bool both_ways = random_.chance(700);
    const uint64_t side = random_.next();
    std::vector<std::pair<Process*, Process*>> cuts;
    for (Process* a : job_.survivors()) {
      for (Process* b : job_.survivors()) {
        const bool across = (side >> a->self.slot & 1) == 0 && (side >> b->self.slot & 1) == 1;
        if (!across) continue;
        cuts.emplace_back(a, b);
        if (both_ways) cuts.emplace_back(b, a);
      }
    }
    for (const auto& [from, to] : cuts) job_.cut(*from, *to);
    later(silence_ * 5, [this, cuts] {
      for (const auto& [from, to] : cuts) job_.heal(*from, *to);
    });
  }

  /// A newcomer asks to join; a member asks for it before or after, or none does.
  void replace(Slot slot, Process& by) {
    if (job_.newest().at(slot) && !random_.chance(200)) return;
    job_.spawn(slot, by);
    Process* const host = anybody();
    if (random_.chance(800)) later(silence_, [this, host, slot] { job_.admit(*host, slot); });
  }

  void end_faults() {
    calm_ = job_.calm = true;
    run_.trace.note("faults end");
    job_.network.heal_all();
    job_.witness_dead = job_.kills_next_decider = false;
    job_.witness.faults = {};
    job_.parting.clear();
    job_.delay_most = milliseconds(2);
    job_.think_most = milliseconds(2);
    job_.witness_most = std::min(job_.witness_most, silence_ / 8);
    // A leader evicts ranks that repeatedly take longer than `silence` to freeze.
    job_.freeze_most = std::min(job_.freeze_most, silence_ / 4);
    for (const auto& process : job_.processes) {
      job_.slowness[process->id] = {};
      job_.get_unstuck(*process);
      if (process->stopped()) job_.wake(*process);
    }
    Process* const one = anybody();
    Process* const other = anybody();
    if (one == other || only_stuck_ ||
        !run_.option("lasting_cut", may_last_ && random_.chance(200)))
      return;
    // The others must go on without one of these two.
    lasting_ = {one, other};
    job_.cut(*one, *other);
    if (random_.chance(512)) job_.cut(*other, *one);
  }

  /// Starts a replacement for every lost rank, if programs wait for replacements.
  void send_newcomers() {
    if (!job_.options.operations.only_full || job_.survivors().empty()) return;
    for (Slot slot = 0; slot < job_.options.ranks; ++slot) {
      if (job_.newest().at(slot)) continue;
      Process& last = job_.at(slot);
      const bool waits = last.running() && last.waits_since &&
                         job_.schedule.now() - *last.waits_since < silence_ * 3;
      if (waits) continue;
      if (last.waits_since) job_.kill(last);
      job_.spawn(slot, *job_.survivors().front());
    }
  }

  /// Members must know that they are members and have done their work; others must know that they
  /// are out.
  std::string unfinished() {
    std::set<Member> living;
    for (const auto& process : job_.processes) {
      if (!process->running()) continue;
      const Slot slot = process->self.slot;
      if (!job_.newest().contains(process->self)) {
        if (!process->waits_since && can_be_told(*process))
          return fmt::format("slot {} does not know it is out", slot);
        continue;
      }
      if (process->runtime.view() != job_.newest())
        return fmt::format("slot {} is in epoch {} of {}", slot, process->runtime.view().epoch,
                           job_.newest().epoch);
      for (const GroupId group : process->engine->groups()) {
        if (process->engine->committed(group) < job_.options.operations.target)
          return fmt::format("slot {} is at operation {} of {} of group {}{}", slot,
                             process->engine->committed(group), job_.options.operations.target,
                             group, process->engine->frozen() ? ", frozen" : "");
      }
      if (const std::string rest = process->engine->unfinished(); !rest.empty())
        return fmt::format("slot {} {}", slot, rest);
      living.insert(process->self);
    }
    if (const auto ends = job_.letters.missing(living))
      return fmt::format("a letter of slot {} to slot {} has not come", ends->first.slot,
                         ends->second.slot);
    return "";
  }

  /// It is in touch with a process that knows how the epoch ended.
  bool can_be_told(const Process& process) {
    const std::vector<Member>& members = job_.newest().members;
    return std::any_of(members.begin(), members.end(), [&](const Member& member) {
      const Process& other = *job_.of(member);
      return other.running() && process.runtime.view().contains(member) &&
             !job_.network.is_cut(process.id, other.id) &&
             !job_.network.is_cut(other.id, process.id);
    });
  }

  bool is_cut_off(const Process& process) const {
    return std::find(lasting_.begin(), lasting_.end(), &process) != lasting_.end();
  }

  /// Returns whether the remaining ranks that hear one another are enough to go on.
  bool has_quorum() {
    std::vector<Process*> able = job_.survivors();
    const View* view = &job_.newest();
    const auto knows = [&](const Process* process) {
      return process->runtime.is_member() && process->runtime.view() == *view;
    };
    if (std::none_of(able.begin(), able.end(), knows)) {
      if (view->epoch == 1) return false;
      // All processes that know how the previous epoch ended are dead. Its remaining members must
      // find out; if they are too few, none ever does.
      view = &job_.agreement.views().at(view->epoch - 1);
      able.clear();
      for (const auto& process : job_.processes) {
        if (process->running() && knows(process.get())) able.push_back(process.get());
      }
    }
    const bool drops_one = std::count_if(able.begin(), able.end(), [&](const Process* process) {
                             return is_cut_off(*process);
                           }) == 2;
    const membership::Quorum quorum(*view, job_.options.membership.witness,
                                    membership::Mutant::none);
    return able.size() + (quorum.witness ? 1 : 0) >= quorum.needed + (drops_one ? 1 : 0);
  }

  void recover() {
    Instant bound = silence_ * 12 + job_.options.membership.ballot * 60 + milliseconds(500);
    // A rank that has asked to recover is waited for until deadlines pass, and a rank that ran out
    // of time without a quorum has waited for its last chance.
    if (job_.options.deadline < std::chrono::hours(1))
      bound += job_.options.deadline * 4 + std::chrono::seconds(5);
    const Instant end = job_.schedule.now() + bound;
    std::string what;
    while (job_.schedule.now() < end) {
      send_newcomers();
      job_.run(silence_ / 4);
      what = unfinished();
      if (what.empty()) return;
    }
    // Too few are left, and they rightly wait.
    if (!has_quorum()) return;
    throw Broken(fmt::format("recovery: {} ms after the faults {} ({} of {} members)", ms(bound),
                             what, job_.survivors().size(), text(job_.newest())));
  }

  simulation::SeedRun& run_;
  Random& random_;
  const uint32_t ranks_most_;
  const bool may_last_;  ///< a cut between two ranks
  Instant silence_{}, duration_{};
  const bool only_stuck_;
  const std::vector<Trouble> kinds_;
  bool leave_when_done_ = false;  ///< ranks leave right after an operation
  Job job_;
  uint32_t troubles_ = 0;
  std::vector<const Process*> lasting_;
  bool spares_quorum_ = true, calm_ = false;
};

}  // namespace tokenyard::collectives::simulated
