#include "simulation/simulation.hpp"

#include <fmt/format.h>

#include "tokenyard/error.hpp"

namespace tokenyard::simulation {

Simulation::Simulation(const Options& options)
    : options_(options),
      policy_(Policy::draw(options_.random, options.ranks)),
      schedule_options_(SeededSchedule::Options::draw(options_.random, options.ranks)),
      schedule_(schedule_options_, options_.random.split()),
      memory_({.policy = policy_,
               .random = options_.random.split(),
               .trace = options.trace,
               .mutator = options.mutator}),
      executor_({.memory = memory_, .schedule = schedule_, .time = time_}) {}

ModelMemory::Host Simulation::add_program(uint32_t rank, std::string label,
                                          std::function<void(ModelMemory::Host)> program) {
  const ModelMemory::Host host = memory_.add_host(rank, std::move(label));
  executor_.spawn_host(rank, [host, program = std::move(program)] { program(host); });
  return host;
}

void Simulation::run(const std::function<bool()>& finished) {
  executor_.run([&] {
    stop_if_due();
    notice_quiet();
    return finished();
  });
}

bool Simulation::run_until(uint64_t end_ns, uint64_t turns, const bool& early) {
  time_.set_end(end_ns);
  bool in_time = true;
  executor_.run([&] {
    notice_quiet();
    in_time = turns-- != 0;
    return early || time_.is_at_end() || !in_time;
  });
  if (early) return false;
  time_.go_to_end();
  return in_time;
}

void Simulation::skip_until(uint64_t end_ns) {
  time_.set_end(end_ns);
  time_.go_to_end();
}

void Simulation::kill(uint32_t rank, InFlight fate) {
  executor_.stop_rank(rank);
  memory_.stop(rank, fate);
}

void Simulation::stop_if_due() {
  if (!options_.stop || stopped_) return;
  const RankStop& stop = *options_.stop;
  if (!stop_at_) {
    if (stop.from != nullptr && !*stop.from) return;
    stop_at_ = (stop.from == nullptr ? 0 : memory_.steps()) + stop.after_steps;
  }
  if (memory_.steps() < *stop_at_) return;
  stopped_ = true;
  executor_.stop_rank(stop.rank);
  memory_.stop(stop.rank, stop.fate);
  options_.on_stop(stop.rank);
}

/// Handles runs in which threads are busy polling but nothing happens. After many turns without
/// progress, memory must deliver what it held back, or the schedule must run the threads that it
/// starves. Time passes only if that did not help: a wait that expires because the awaited thread
/// was not scheduled says nothing about the kernel.
void Simulation::notice_quiet() {
  if (memory_.progress() != quiet_since_) {
    quiet_since_ = memory_.progress();
    quiet_turns_ = quiet_rounds_ = 0;
    schedule_.be_fair(false);
    return;
  }
  if (++quiet_turns_ < kQuietTurns) return;
  quiet_turns_ = 0;
  if (memory_.step_when_idle()) return;
  schedule_.be_fair(true);
  if (++quiet_rounds_ < kFairRounds) return;
  const uint32_t idle_rounds = quiet_rounds_ - kFairRounds;
  if (idle_rounds > time_.rounds_max())
    throw InternalError("threads run, but nothing has happened for hours of virtual time");
  time_.idle(idle_rounds, 0);
}

std::byte* Simulation::allocate(const std::string& name, size_t bytes, uint32_t rank) {
  // The system allocates pages lazily, zeroed. Each allocation has its own pages.
  const size_t whole = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
  std::byte* const base = allocations_.emplace_back(Mapping::anonymous(whole)).base();
  memory_.add_region(fmt::format("{} of rank {}", name, rank), base, bytes, rank);
  return base;
}

void Simulation::free(void* memory) {
  if (memory != nullptr) memory_.remove_region(memory);
}

std::string Simulation::text() const {
  std::string text =
      fmt::format("memory: {}; schedule: {}", policy_.text(), schedule_options_.text());
  if (options_.stop)
    text += fmt::format("; rank {} stops after {} steps, its stores {}", options_.stop->rank,
                        options_.stop->after_steps,
                        options_.stop->fate == InFlight::land     ? "land"
                        : options_.stop->fate == InFlight::vanish ? "vanish"
                                                                  : "tear");
  return text;
}

}  // namespace tokenyard::simulation
