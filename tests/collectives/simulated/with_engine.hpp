/// Puts the real engine into a simulated job.
///
///     Disaster(run, {}, with_engine()).happen();
#pragma once

#include "collectives/simulated/engine_program.hpp"
#include "collectives/simulated/job.hpp"

namespace tokenyard::collectives::simulated {

struct EngineMutations {
  EngineMutant engine = EngineMutant::none;
  ProgramMutant program = ProgramMutant::none;
};

inline std::unique_ptr<Program> with_engine(const EngineMutations& mutations, Job& job,
                                            Process& process, Program::Watcher watcher) {
  const Operations::Options& asked = job.options.operations;
  EngineProgram::Options options{
      .target = asked.target,
      .ranks = job.options.ranks,
      .on_failure = OnFailure::exclude,
      .timeout = job.options.deadline,
      .rooted = asked.only_full || !job.options.newcomers,
      .letters = job.options.letters ? &job.letters : nullptr,
      .eager_limit = job.options.is_eager(process.self.slot) ? eager_limit_max : 0,
      .recovery = job.options.recovery,
      .grow_at = job.options.grow_at,
      .slots_max = job.options.slots_max,
      .engine_mutant = mutations.engine,
      .mutant = mutations.program};
  options.recovery.seed ^= process.self.incarnation * 0x9e3779b97f4a7c15u;
  if (asked.only_full) options.on_failure = OnFailure::retry;
  if (asked.raises) options.on_failure = OnFailure::raise;
  options.reunions =
      job.options.reunions && !job.options.newcomers && options.on_failure == OnFailure::exclude;
  const auto engine = [&process]() -> EngineProgram& {
    return static_cast<EngineProgram&>(*process.engine);
  };
  const auto post = [&job, &process, engine](Slot slot, Parcel parcel) {
    Process* const to = job.of(*engine().channels_of().at(slot));
    job.network.send(
        process.id, to->id, Job::stream_of(parcel.line.group),
        [to, from = process.self.slot, parcel = std::move(parcel)] {
          to->input([=] { static_cast<EngineProgram&>(*to->engine).arrive(from, parcel); });
        });
  };
  // The engine calls these under its lock.
  const auto soon = [&job, &process](std::function<void()> action) {
    job.schedule.at(job.schedule.now(), [&process, action] { process.input(action); });
  };
  return std::make_unique<EngineProgram>(
      process.self, options, std::move(watcher),
      EngineProgram::Outside{
          .post = post,
          .clock = [&process] { return process.now(); },
          .report_timeout =
              [&process, soon](const TimeoutReport& timeout_report, Epoch seen_in) {
                soon([&process, timeout_report, seen_in] {
                  process.runtime.report_timeout(timeout_report, seen_in, process.now());
                });
              },
          .admit =
              [&job, &process, soon](const std::vector<Slot>& slots, Epoch seen_in) {
                for (const Slot slot : slots) job.admission.wished(slot);
                const auto heard = [&process, slots, seen_in] {
                  process.runtime.admit(slots, seen_in, process.now());
                };
                if (job.options.wish_most == Instant{}) return soon(heard);
                job.schedule.at(job.schedule.now() + job.some(job.options.wish_most),
                                [&process, heard] { process.input(heard); });
              },
          .withdraw =
              [&process, soon](const std::vector<Slot>& slots) {
                soon([&process, slots] { process.runtime.withdraw(slots); });
              },
          .evict = [&job, &process](const Member& member) { job.evict(process, member); },
          .recover = [&job, &process](bool wanted) { job.recover(process, wanted); },
          .failed = [&job, &process](GroupId group) { job.poke(process, group); },
          .drive_soon = [soon, engine] { soon([engine] { engine().drive(); }); },
          .drive_at =
              [&job, &process, engine](Instant when) {
                const Instant wait = std::max(when - process.now(), Instant{});
                job.schedule.at(job.schedule.now() + wait, [&process, engine] {
                  process.input([engine] { engine().drive(); });
                });
              }});
}

inline MakeProgram with_engine(EngineMutations mutations = {}) {
  return [mutations](Job& job, Process& process, Program::Watcher watcher) {
    return with_engine(mutations, job, process, std::move(watcher));
  };
}

}  // namespace tokenyard::collectives::simulated
