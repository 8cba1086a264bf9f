/// A whole job in one thread and virtual time: ranks that run operations, everything that can
/// happen to them, and the checkers that watch. Tests script it; the simulator lets a seed drive
/// it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "collectives/simulated/checkers.hpp"
#include "collectives/simulated/letters.hpp"
#include "collectives/simulated/operations.hpp"
#include "collectives/simulated/process.hpp"
#include "collectives/simulated/recovery_calls.hpp"
#include "collectives/simulated/witness_store.hpp"
#include "membership/message_codec.hpp"
#include "simulation/random.hpp"
#include "simulation/trace.hpp"

namespace tokenyard::collectives::simulated {

using simulation::Random;
using std::chrono::microseconds;
using std::chrono::milliseconds;

struct JobOptions {
  uint32_t ranks = 3;
  uint32_t slots_max = 0;  ///< largest size; 0: `ranks`
  membership::MembershipOptions membership = {
      .heartbeat = milliseconds(50), .silence = milliseconds(400), .ballot = milliseconds(20)};
  Operations::Options operations = {.target = 1'000'000};
  std::vector<std::vector<Slot>> groups = {};  ///< in addition to the world
  Instant delay_least = microseconds(20), delay_most = microseconds(200);
  Instant think_most = milliseconds(5);      ///< between operations
  Instant freeze_most{};                     ///< time to stop the engine
  Instant witness_most = milliseconds(2);    ///< until the witness has answered
  Instant deadline = std::chrono::hours(1);  ///< of an operation
  bool through_codec = false;                ///< messages travel as bytes
  bool only_stuck_are_blamed = false;        ///< no other delays
  Instant wish_most{};                       ///< until a request to admit is heard
  bool yields_slot = true;                   ///< some live ranks are replaced on purpose
  bool newcomers = true;                     ///< may come even if nobody waits for them
  bool letters = false;                      ///< engines send messages too
  uint32_t eager_one_in = 1;                 ///< 0: each send lasts until it is received; 2: those
                                             ///< of odd slots
  bool is_eager(Slot slot) const { return eager_one_in > 0 && slot % eager_one_in == 0; }
  bool reunions = false;                 ///< engines make and close groups too
  RecoveryCalls::Options recovery = {};  ///< for OnFailure::raise
  Sequence grow_at = 0;  ///< number of operations after which founders grow the job; 0: never
};

class Job;
/// Makes the programs of the ranks; without it, they run the stand-in.
using MakeProgram =
    std::function<std::unique_ptr<Program>(Job&, Process&, Program::Watcher watcher)>;

class Job {
 public:
  Job(const JobOptions& options, uint64_t seed, simulation::Trace& trace,
      MakeProgram make_program = {});

  // ---- events
  // -------------------------------------------------------------------------------------

  void run(Instant time) { run_until(schedule.now() + time); }
  void run_until(Instant end) {
    while (schedule.step(end)) {
    }
  }
  /// Runs until the condition holds, at most `time`; returns whether it holds.
  template <class Condition>
  bool run_until_it(Condition holds, Instant most) {
    const Instant end = schedule.now() + most;
    while (!holds()) {
      if (!schedule.step(end)) return holds();
    }
    return true;
  }
  /// Kills a process as SIGKILL does: its connections break, and bytes under way are partly lost.
  /// `noticed` false: as when a host loses power.
  void kill(Process& process, bool noticed = true);
  void stop(Process& process) {
    trace.event("stop", process.self.slot, 0, 0, process.self.incarnation);
    innocence.touched(process.self);
    process.stop();
  }
  void wake(Process& process) {
    trace.event("wake", process.self.slot, 0, 0, process.self.incarnation);
    process.wake(random.chance(512));
  }
  /// One process suspects another without reason.
  void abort_flag(Process& by, const Process& about) {
    innocence.touched(by.self, about.self);
    by.input([&by, gone = about.self] {
      by.runtime.suspect(gone.slot, Suspicion::reset, by.runtime.view().epoch, by.now());
    });
  }
  void cut(const Process& from, const Process& to) {
    innocence.touched(from.self, to.self);
    network.cut(from.id, to.id);
  }
  void heal(const Process& from, const Process& to) { network.heal(from.id, to.id); }
  /// Delays everything that it sends.
  void slow_down(const Process& process, Instant by) {
    innocence.touched(process.self);
    slowness[process.id] = by;
  }
  /// Its program hangs; its control thread does not.
  void get_stuck(Process& process, Instant time) {
    process.stuck_until = schedule.now() + time;
    blame.stuck(process.self, process.stuck_until);
    schedule.at(process.stuck_until, [this, &process] { poke_all(process); });
  }
  void get_unstuck(Process& process) {
    if (process.stuck_until <= schedule.now()) return;
    process.stuck_until = schedule.now();
    blame.stuck(process.self, process.stuck_until);
    poke_all(process);
  }
  void admit(Process& process, Slot slot) {
    admission.wished(slot);
    process.input([&process, slot] {
      process.runtime.admit({slot}, process.runtime.view().epoch, process.now());
    });
  }
  /// Its program evicts another rank.
  void evict(Process& by, const Member& member) {
    innocence.leaves(member);
    by.input([&by, member] { by.runtime.evict(member, by.now()); });
  }
  void leave(Process& process) {
    innocence.leaves(process.self);
    process.input(
        [&process] { process.engine->part([&process] { process.runtime.leave(process.now()); }); });
  }
  /// Starts a process for the slot, which has found `by` through the store.
  Process& spawn(Slot slot, const Process& by);

  /// Its program asks to recover, or withdraws that.
  void recover(Process& process, bool wanted = true) {
    process.input([this, &process, wanted] {
      if (wanted) {
        recovering.asked(process.self);
        blame.waits_to_recover(process.self);
      }
      process.runtime.recover(wanted, process.now());
    });
  }
  /// Programs may hear of a failure before their own operations do.
  void spread_the_news(const Process& from) {
    for (Process* other : survivors()) {
      if (other == &from || !random.chance(300)) continue;
      schedule.at(schedule.now() + some(delay_most),
                  [other] { other->input([other] { other->engine->hear_of_failure(); }); });
    }
  }

  /// Its program calls the group's next operation soon.
  void poke(Process& process, GroupId group);
  /// Messages of different groups may overtake one another.
  static Stream stream_of(GroupId group) { return static_cast<Stream>(1 + group); }
  /// Draws a time from 0 to `most`.
  Instant some(Instant most) {
    return Instant(static_cast<int64_t>(random.next() % static_cast<uint64_t>(most.count() + 1)));
  }

  // ---- state
  // --------------------------------------------------------------------------------------

  /// Returns the newest process of a slot.
  Process& at(Slot slot) {
    Process* newest = nullptr;
    for (const auto& process : processes) {
      if (process->self.slot == slot) newest = process.get();
    }
    return *newest;
  }
  Process* of(const Member& member) {
    const auto found = by_member_.find(member);
    return found == by_member_.end() ? nullptr : found->second;
  }
  const View& newest() const { return agreement.newest(); }
  /// Returns the members of the newest epoch that run and have not been told that they are out.
  std::vector<Process*> survivors() {
    std::vector<Process*> list;
    for (const Member& member : newest().members) {
      Process* const process = of(member);
      if (process->running()) list.push_back(process);
    }
    return list;
  }

  const JobOptions options;
  Random random;
  simulation::Trace& trace;
  Schedule schedule;
  VirtualNetwork network;
  Instant delay_most, think_most, freeze_most,
      witness_most;  ///< from the options, until changed
  std::vector<std::unique_ptr<Process>> processes;
  WitnessStore witness;
  bool witness_dead = false;
  bool calm = false;                ///< no more faults happen
  bool kills_next_decider = false;  ///< the process that installs the next epoch first dies at once
  std::vector<Instant> slowness;    ///< [process]: delay of everything that it sends
  /// These leave after one more operation, with which others may still be busy.
  std::set<Member> parting;

  AgreementChecker agreement;
  MajorityChecker majority;
  CommitChecker commits;
  AdmissionChecker admission;
  BlameChecker blame;
  NewsChecker news;
  RecoverChecker recovering;
  InnocenceChecker innocence;
  LetterChecker letters;

 private:
  static View first_view(const JobOptions& options);
  Process& add(Member self, const View& first);
  void send(Process& from, const membership::Send& send);
  std::unique_ptr<Program> stand_in(Process& process, Program::Watcher watcher);
  void ask_witness(Process& from, const membership::AskWitness& ask);
  void go_to_witness(Process& from);
  /// The store holds this, as `from` has just learned.
  void witness_holds(Process& from, std::optional<WitnessStore::Value> held, Instant end);
  /// The request or its answer is lost, or the store is dead.
  bool witness_is_reached(const Process& from);
  void end_question(Process& from, Instant when, const std::optional<membership::Message>& reply);
  void freeze(Process& process);
  void install(Process& process, const Verdict& verdict);
  void poke_all(Process& process) {
    for (const GroupId group : process.engine->groups()) poke(process, group);
  }
  void begin(Process& process, GroupId group);
  /// Ends its connections.
  void hang_up(Process& process);
  void notice_the_end(Process& peer, const Member& gone, Instant when);

  std::unique_ptr<Program> make_program(Process& process, Program::Watcher watcher) {
    if (make_program_) return make_program_(*this, process, std::move(watcher));
    return stand_in(process, std::move(watcher));
  }

  const MakeProgram make_program_;
  std::map<Member, Process*> by_member_;
  struct Client {
    bool busy = false;
    std::optional<membership::Message> question;  ///< the next one
    std::optional<membership::WitnessQuestion> asked;
  };
  std::map<ProcessId, Client> clients_;
  uint64_t incarnations_ = 100;
};

}  // namespace tokenyard::collectives::simulated

#include "collectives/simulated/job_wiring.hpp"
