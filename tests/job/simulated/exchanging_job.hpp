/// A job whose ranks exchange tokens, under failures drawn from a seed.
///
///     ExchangingJob(run).live();
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "collectives/simulated/disaster.hpp"
#include "job/simulated/exchanging_program.hpp"
#include "simt/source_line.hpp"

namespace tokenyard::job_test {

using collectives::simulated::Disaster;
using collectives::simulated::Trouble;
using std::chrono::milliseconds;

struct Mutations {
  membership::Mutant membership = membership::Mutant::none;
  Mutant job = Mutant::none;
  WorldMutant world = WorldMutant::none;
};

class ExchangingJob {
 public:
  explicit ExchangingJob(simulation::SeedRun& run, Mutations mutations = {})
      : run_(run),
        mutations_(mutations),
        shapes_(draw_shapes(run)),
        turn_ns_(run.option("turn_ns", one_of({0, 50, 200, 800}))),
        disaster_(
            run, {.protocol = mutations.membership},
            [this](Job& job, Process& process, Program::Watcher) {
              if (!shared_) make_shared_parts(job);
              return std::make_unique<ExchangingProgram>(*shared_, job, process);
            },
            draw_kinds(run), kRanksMost, /*may_last=*/false) {}

  void live() {
    disaster_.happen();
    end();
  }

 private:
  static constexpr uint32_t kRanksMost = 4;

  int64_t one_of(const std::vector<int64_t>& choices) {
    return choices[run_.random.below(static_cast<uint32_t>(choices.size()))];
  }

  static Shapes draw_shapes(simulation::SeedRun& run) {
    Random& random = run.random;
    Shapes shapes;
    shapes.low_latency = run.option("low_latency", random.chance(512));
    shapes.experts_per_rank = random.between(1, 2);
    // One rank alone may have to hold all choices.
    shapes.topk = random.between(1, shapes.experts_per_rank);
    shapes.hidden = shapes.low_latency ? 32 : 16;
    shapes.tokens_most = random.between(1, 2);
    shapes.sms = shapes.low_latency ? 2 : random.between(1, 2);
    shapes.seed = static_cast<uint32_t>(random.next());
    return shapes;
  }

  /// A connection never ends while both processes live: their links would be made anew, and this
  /// network has no such links.
  static std::vector<Trouble> draw_kinds(simulation::SeedRun& run) {
    std::vector<Trouble> kinds;
    for (const Trouble kind :
         {Trouble::kill, Trouble::power_loss, Trouble::stop, Trouble::cut, Trouble::partition,
          Trouble::slow, Trouble::stuck, Trouble::replace, Trouble::leave, Trouble::no_witness}) {
      const bool often = kind == Trouble::kill || kind == Trouble::stop;
      if (run.random.chance(often ? 600 : 300)) kinds.push_back(kind);
    }
    if (kinds.empty()) kinds.push_back(Trouble::kill);
    return kinds;
  }

  void make_shared_parts(Job& job) {
    Random& random = run_.random;
    const Instant silence = job.options.membership.silence;
    shapes_.timeout = silence * random.between(8, 20);
    shapes_.rows_of_before = mutations_.job == Mutant::rows_of_before;
    shared_.emplace(run_, job.schedule, job.options.ranks, Instant(turn_ns_), shapes_,
                    mutations_.job);
    shared_->calls = run_.option("calls", random.between(2, 6));
    // The calls last as long as the failures do.
    job.think_most *= static_cast<int64_t>(job.options.operations.target);
    job.think_most /= shared_->calls;
    shared_->looks_around = run_.option("looks_around", shapes_.low_latency || random.chance(512));
    shared_->world_mutant = mutations_.world;
    // No newcomer takes part in a rebuilt world, and who is slow or stuck is not lost.
    const bool may_rebuild = !job.options.newcomers && !job.options.operations.only_full &&
                             job.options.deadline == std::chrono::hours(1);
    shared_->rebuilds = run_.option("rebuilds", may_rebuild && random.chance(400));
    shared_->strikes_at_world = run_.option("strikes_at_world", random.below(4));
    shared_->strikes_at_call = run_.option("strikes_at_call", random.below(16));
    shared_->told_most = one_of({0, 0, 1, 20}) * milliseconds(1);
    shared_->timeout = job.options.deadline;
    if (shapes_.low_latency) shared_->timeout = std::min(shared_->timeout, shapes_.timeout * 4);
  }

  /// Programs end, so that their worlds do, and whatever has gone wrong on them is told.
  void end() {
    std::set<Member> untouched;
    for (const auto& process : disaster_.job().processes) {
      const auto& program = static_cast<const ExchangingProgram&>(*process->engine);
      if (process->running() && program.untouched() &&
          disaster_.job().newest().contains(process->self))
        untouched.insert(process->self);
    }
    shared_->worlds.at_the_end(untouched);
    shared_->over = true;
    shared_->computation.happened();
    disaster_.job().run(milliseconds(20));
    if (!shared_->wrong.empty()) throw collectives::simulated::Broken(shared_->wrong);
    for (const simulation::Finding& finding :
         shared_->computation.simulation().memory().findings().list())
      throw collectives::simulated::Broken(finding.text(simt::source_line));
  }

  simulation::SeedRun& run_;
  const Mutations mutations_;
  Shapes shapes_;
  const int64_t turn_ns_;
  std::optional<Shared> shared_;
  Disaster disaster_;
};

}  // namespace tokenyard::job_test
