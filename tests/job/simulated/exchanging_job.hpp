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
};

class ExchangingJob {
 public:
  explicit ExchangingJob(simulation::SeedRun& run, Mutations mutations = {})
      : run_(run),
        mutant_(mutations.job),
        shapes_(draw_shapes(run)),
        turn_ns_(run.option("turn_ns", one_of({0, 50, 500, 3000}))),
        disaster_(
            run, {.protocol = mutations.membership},
            [this](Job& job, Process& process, Program::Watcher) {
              if (!shared_) make_shared_parts(job);
              return std::make_unique<ExchangingProgram>(*shared_, job, process);
            },
            draw_kinds(run), kRanksMost) {}

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
    shapes.topk = random.between(1, 2);
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
    shared_.emplace(run_, job.schedule, job.options.ranks, Instant(turn_ns_), shapes_, mutant_);
    shared_->calls = run_.option("calls", random.between(2, 6));
    // The calls last as long as the failures do.
    job.think_most *= static_cast<int64_t>(job.options.operations.target);
    job.think_most /= shared_->calls;
    shared_->looks_around = run_.option("looks_around", shapes_.low_latency || random.chance(512));
    shared_->told_most = one_of({0, 0, 1, 20}) * milliseconds(1);
    shared_->timeout = job.options.deadline;
    if (shapes_.low_latency) shared_->timeout = std::min(shared_->timeout, shapes_.timeout * 4);
  }

  /// Programs end, so that their worlds do, and whatever has gone wrong on them is told.
  void end() {
    std::set<Member> untouched;
    for (const auto& process : disaster_.job().processes) {
      const auto& program = static_cast<const ExchangingProgram&>(*process->engine);
      if (process->running() && program.untouched()) untouched.insert(process->self);
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
  const Mutant mutant_;
  Shapes shapes_;
  const int64_t turn_ns_;
  std::optional<Shared> shared_;
  Disaster disaster_;
};

}  // namespace tokenyard::job_test
