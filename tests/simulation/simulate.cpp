// Runs simulator suites by seed: ./run simulate --help.

#include <fmt/color.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "base/environment.hpp"
#include "bench/harness/command_line.hpp"
#include "simt/source_line.hpp"
#include "simulation/forked_jobs.hpp"
#include "simulation/option_tally.hpp"
#include "simulation/reached_states.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::simulation {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;

/// One seed in this many runs twice: a run that is not deterministic could not be replayed.
constexpr uint64_t kReplayEvery = 16;
constexpr uint32_t kFailuresShown = 5;

struct Options {
  std::string suite, trace, place;
  std::optional<uint64_t> seed;
  uint64_t first = 1;
  uint32_t seeds = 0;
  double budget = 0;
  uint32_t limit = 180;
  uint32_t jobs = std::max(1u, std::thread::hardware_concurrency());
  bool mutants = false, list = false, tally = false;
};

std::string place(simt::CodeAddress where) {
  return simt::source_line(where);
}

struct Outcome {
  std::string options;            ///< drawn by the seed
  std::string problem;            ///< empty if the seed passed
  std::set<std::string> reached;  ///< states
};

// Separates the fields between processes. Options may contain newlines, as litmus programs do.
constexpr char kAfterField = '\0';

std::string encode(const Outcome& outcome) {
  std::string text = outcome.options + kAfterField + outcome.problem;
  for (const std::string& state : outcome.reached) text += kAfterField + state;
  return text;
}

/// Decodes an Outcome, or the note of a process that died, which holds the drawn options only.
Outcome decode(const std::string& text) {
  std::vector<std::string> fields(1);
  for (const char letter : text) {
    if (letter == kAfterField)
      fields.emplace_back();
    else
      fields.back() += letter;
  }
  if (fields.size() == 1) return {fields[0], "", {}};
  return {fields[0], fields[1], {fields.begin() + 2, fields.end()}};
}

/// Describes the death of a process; SIGALRM ends a seed that runs for longer than the limit.
std::string death(const ForkedJobs::Result& result, const Options& options) {
  if (result.signal != SIGALRM) return result.crash;
  return fmt::format("out of time: it ran for {} s, the limit of a seed (--limit)", options.limit);
}

using OnOption = std::function<void(const std::string&)>;

Outcome run_seed(const Suite& suite, uint64_t seed, Trace& trace, Mutator* mutator,
                 OnOption on_option = nullptr) {
  SeedRun run(seed, trace, mutator);
  run.on_option = std::move(on_option);
  try {
    suite.run(run);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return {run.options, what.empty() ? "an exception without a message" : what, run.reached};
  }
  return {run.options, "", run.reached};
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string replay(const Suite& suite, uint64_t seed) {
  return fmt::format("./run simulate --suite {} --seed {}", suite.name, seed);
}

/// Runs one seed in this process, with its trace. Returns whether it passed.
bool run_alone(const Suite& suite, uint64_t seed, const std::string& trace_path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      trace_path.empty() ? nullptr : std::fopen(trace_path.c_str(), "w"),
      [](std::FILE* open) { return open == nullptr ? 0 : std::fclose(open); });
  if (!trace_path.empty() && file == nullptr)
    throw std::runtime_error("cannot write " + trace_path);
  Trace trace(file.get());
  const Outcome outcome = run_seed(suite, seed, trace, nullptr);
  fmt::print("{}: seed {}: {} events, trace {:016x}\n", suite.name, seed, trace.events(),
             trace.hash());
  if (outcome.problem.empty()) return true;
  fmt::print("FAILED\ndrawn: {}\n{}\n", outcome.options, outcome.problem);
  return false;
}

struct Tally {
  uint64_t passed = 0, failed = 0;
  bool draws_hold = true;  ///< seeds reached the states that they should
};

/// Shows the progress of a sweep: in one line on a terminal, every ten seconds elsewhere.
class Progress {
 public:
  explicit Progress(double budget) : budget_(budget) {}
  bool show(const std::string& text) {
    const double now = seconds();
    if (on_terminal_) {
      fmt::print(stderr, "\r\033[K{} ({:.0f} s)", text, now);
    } else if (now - shown_ > 10) {
      fmt::print(stderr, "{} ({:.0f} s)\n", text, now);
      shown_ = now;
    }
    return budget_ == 0 || now < budget_;
  }
  void clear() const {
    if (on_terminal_) fmt::print(stderr, "\r\033[K");
  }
  double seconds() const { return duration<double>(steady_clock::now() - start_).count(); }

 private:
  double budget_, shown_ = 0;
  bool on_terminal_ = understands_escapes(2);
  steady_clock::time_point start_ = steady_clock::now();
};

Tally sweep(const Suite& suite, const Options& options) {
  const uint64_t seeds = options.seeds != 0 ? options.seeds : suite.seeds;
  Tally tally;
  OptionTally drawn;
  ReachedStates states(suite);
  Progress progress(options.budget);
  ForkedJobs jobs(options.jobs, [&](uint64_t task) {
    const uint64_t seed = options.first + task;
    ::alarm(options.limit);
    Trace trace;
    Outcome outcome =
        run_seed(suite, seed, trace, nullptr, [&](const std::string& drawn) { jobs.note(drawn); });
    if (outcome.problem.empty() && task % kReplayEvery == 0) {
      ::alarm(options.limit);
      Trace again;
      run_seed(suite, seed, again, nullptr);
      if (again.hash() != trace.hash())
        outcome.problem = fmt::format("the same seed ran differently: traces {:016x} and {:016x}",
                                      trace.hash(), again.hash());
    }
    return encode(outcome);
  });
  jobs.run(
      seeds,
      [&](const ForkedJobs::Result& result) {
        Outcome outcome = decode(result.text);
        if (!result.crash.empty()) outcome.problem = death(result, options);
        drawn.add(outcome.options);
        states.add(outcome.reached);
        if (outcome.problem.empty()) {
          ++tally.passed;
          return progress.seconds() < options.budget || options.budget == 0;
        }
        progress.clear();
        const uint64_t seed = options.first + result.task;
        if (++tally.failed <= kFailuresShown)
          fmt::print("{}: seed {} FAILED\ndrawn: {}\n{}\nreplay: {}\n\n", suite.name, seed,
                     outcome.options, outcome.problem, replay(suite, seed));
        else
          fmt::print("{}: seed {} FAILED; replay: {}\n", suite.name, seed, replay(suite, seed));
        std::fflush(stdout);
        return progress.seconds() < options.budget || options.budget == 0;
      },
      [&] {
        return progress.show(fmt::format("{}: {} of {} seeds, {} failed", suite.name,
                                         tally.passed + tally.failed, seeds, tally.failed));
      });
  progress.clear();
  const uint64_t ran = tally.passed + tally.failed;
  if (ran == seeds)
    fmt::print("{}: {} seeds in {:.0f} s\n", suite.name, ran, progress.seconds());
  else
    fmt::print("{}: {} of {} seeds in {:.0f} s, {} not run: {}\n", suite.name, ran, seeds,
               progress.seconds(), seeds - ran,
               options.budget != 0 ? fmt::format("the budget was {} s", options.budget)
                                   : "a process ended in the middle of a seed");
  if (options.budget == 0) tally.failed += seeds - ran;
  fmt::print("{}", states.text());
  if (options.tally) fmt::print("{}", drawn.text());
  for (const std::string& fault : states.faults()) {
    fmt::print("{}: {}\n", suite.name, fault);
    tally.draws_hold = false;
  }
  return tally;
}

// ---- mutants ------------------------------------------------------------------------------------

struct Mutant {
  std::string place;
  Mutation mutation;
};

/// Returns every fault at every place where clean runs could have it, filtered by --place.
std::vector<Mutant> mutants_of(const Suite& suite, const Options& options) {
  constexpr uint64_t kCleanSeeds = 80;  // Enough to reach every place in every suite.
  Mutator recorder;
  for (uint64_t seed = options.first; seed < options.first + kCleanSeeds; ++seed) {
    Trace trace;
    const Outcome outcome = run_seed(suite, seed, trace, &recorder);
    if (!outcome.problem.empty())
      throw std::runtime_error(fmt::format("{} fails without a mutation, seed {}: {}", suite.name,
                                           seed, outcome.problem));
  }
  std::map<std::pair<Fault, std::string>, std::vector<simt::CodeAddress>> by_line;
  for (const auto& [fault, where] : recorder.sites())
    by_line[{fault, place(where)}].push_back(where);
  std::vector<Mutant> mutants;
  for (auto& [key, where] : by_line)
    if (key.second.find(options.place) != std::string::npos)
      mutants.push_back({key.second, {key.first, std::move(where)}});
  return mutants;
}

bool is_of(const Suite::Explained& entry, const Mutant& mutant) {
  // With a colon, so that line 5 does not match line 51.
  return entry.fault == mutant.mutation.fault &&
         (mutant.place + ':').find(entry.place + ':') != std::string::npos;
}

const std::string* explanation(const Suite& suite, const Mutant& mutant) {
  for (const Suite::Explained& entry : suite.explained)
    if (is_of(entry, mutant)) return &entry.reason;
  return nullptr;
}

/// Returns whether each explanation names an existing mutant; otherwise its line moved or is gone.
bool explanations_hold(const Suite& suite, const std::vector<Mutant>& mutants) {
  bool hold = true;
  for (const Suite::Explained& entry : suite.explained) {
    const bool fits = std::any_of(mutants.begin(), mutants.end(),
                                  [&](const Mutant& mutant) { return is_of(entry, mutant); });
    if (!fits)
      fmt::print("{}: no mutant matches the explanation of: {} at {}\n", suite.name,
                 name(entry.fault), entry.place);
    hold &= fits;
  }
  return hold;
}

/// Lists the mutants. Returns what explanations_hold returns.
bool list_mutants(const Suite& suite, const Options& options) {
  const std::vector<Mutant> mutants = mutants_of(suite, options);
  for (const Mutant& mutant : mutants)
    fmt::print("{}: {} at {}{}\n", suite.name, name(mutant.mutation.fault), mutant.place,
               explanation(suite, mutant) != nullptr ? " (explained)" : "");
  return !options.place.empty() || explanations_hold(suite, mutants);
}

/// Runs the mutants. Returns whether each was caught or is explained.
bool mutate(const Suite& suite, const Options& options) {
  const std::vector<Mutant> mutants = mutants_of(suite, options);
  const uint64_t seeds = options.seeds != 0 ? options.seeds : 200;
  uint32_t caught = 0, survived = 0, explained = 0;
  Progress progress(options.budget);
  ForkedJobs jobs(options.jobs, [&](uint64_t task) {
    for (uint64_t seed = options.first; seed < options.first + seeds; ++seed) {
      ::alarm(options.limit);
      jobs.note(fmt::format("by seed {}: ", seed));
      Mutator mutator(mutants[task].mutation);
      Trace trace;
      const std::string problem = run_seed(suite, seed, trace, &mutator).problem;
      if (!problem.empty()) return fmt::format("by seed {}: {}", seed, first_line(problem));
    }
    return std::string();
  });
  jobs.run(
      mutants.size(),
      [&](const ForkedJobs::Result& result) {
        progress.clear();
        const Mutant& mutant = mutants[result.task];
        const std::string what = fmt::format("{} at {}", name(mutant.mutation.fault), mutant.place);
        const std::string* const reason = explanation(suite, mutant);
        if (!result.crash.empty() || !result.text.empty()) {
          ++caught;
          fmt::print("caught    {}\n          {}{}\n", what, result.text,
                     result.crash.empty() ? "" : death(result, options));
        } else if (reason != nullptr) {
          ++explained;
          fmt::print("explained {}\n          {}\n", what, *reason);
        } else {
          ++survived;
          fmt::print("SURVIVED  {}\n          {} seeds\n", what, seeds);
        }
        std::fflush(stdout);
        return true;
      },
      [&] {
        return progress.show(fmt::format("{}: {} of {} mutants", suite.name,
                                         caught + survived + explained, mutants.size()));
      });
  progress.clear();
  const size_t judged = caught + survived + explained;
  if (judged < mutants.size())
    fmt::print("out of time: {} of {} mutants were not tried\n", mutants.size() - judged,
               mutants.size());
  fmt::print("{} caught, {} survived, {} explained\n", caught, survived, explained);
  return survived == 0;
}

std::string no_suite(const std::string& name) {
  std::vector<std::string> names;
  for (const Suite& suite : suites()) names.push_back(suite.name);
  std::sort(names.begin(), names.end());
  return fmt::format("no suite is called {}; choose one of {} (--list describes them)", name,
                     fmt::join(names, ", "));
}

int run(const Options& options) {
  std::vector<const Suite*> chosen;
  for (const Suite& suite : suites())
    if (options.suite.empty() || suite.name == options.suite) chosen.push_back(&suite);
  std::sort(chosen.begin(), chosen.end(),
            [](const Suite* a, const Suite* b) { return a->name < b->name; });
  if (chosen.empty()) throw std::runtime_error(no_suite(options.suite));
  if (options.list && !options.mutants) {
    for (const Suite* suite : chosen) fmt::print("{:<12} {}\n", suite->name, suite->what);
    return 0;
  }
  if (!options.trace.empty() && (!options.seed || chosen.size() != 1))
    throw std::runtime_error("--trace needs --suite and --seed: it holds one run");
  bool fine = true;
  Tally all;
  for (const Suite* suite : chosen) {
    if (options.mutants) {
      fine &= options.list ? list_mutants(*suite, options) : mutate(*suite, options);
    } else if (options.seed) {
      ++(run_alone(*suite, *options.seed, options.trace) ? all.passed : all.failed);
    } else {
      const Tally tally = sweep(*suite, options);
      all.passed += tally.passed;
      all.failed += tally.failed;
      fine &= tally.draws_hold;
    }
  }
  if (!options.mutants) fmt::print("{} passed, {} failed\n", all.passed, all.failed);
  return fine && all.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tokenyard::simulation

int main(int count, char** arguments) {
  using tokenyard::bench::exit_of_parse, tokenyard::bench::exit_with, tokenyard::bench::in_range;
  tokenyard::simulation::Options options;
  CLI::App app("Runs kernels under weak memory, late stores and odd schedules, drawn by seed",
               "./run simulate");
  const auto a_seed = in_range<uint64_t>(0, std::numeric_limits<int64_t>::max());
  app.add_option("--suite", options.suite, "one suite; without it, all");
  CLI::Option* const seeds =
      app.add_option("--seeds", options.seeds, "number of seeds; without it, each suite's own")
          ->check(in_range<uint64_t>(1, UINT32_MAX));
  CLI::Option* const first = app.add_option("--first", options.first, "the first seed of a sweep")
                                 ->capture_default_str()
                                 ->check(a_seed);
  CLI::Option* const seed =
      app.add_option("--seed", options.seed, "replay one seed; without --suite, of all suites")
          ->check(a_seed)
          ->excludes(seeds, first);
  app.add_option("--budget", options.budget, "seconds after which a sweep ends")
      ->check(in_range(0.001, 1e9));
  app.add_option("--limit", options.limit, "seconds after which a seed has failed")
      ->capture_default_str()
      ->check(in_range(1, 86400));
  app.add_option("--jobs", options.jobs, "seeds in parallel; without it, one per core")
      ->check(in_range(1, 4096));
  app.add_option("--trace", options.trace, "file for the events of a replay, as text");
  app.add_flag("--tally", options.tally, "after a sweep, print how many seeds drew each option");
  CLI::Option* const mutants =
      app.add_flag("--mutants", options.mutants,
                   "break one line at a time, and report whether a seed notices")
          ->excludes(seed);
  app.add_option("--place", options.place,
                 "with --mutants: only at places FILE:LINE that contain this")
      ->needs(mutants);
  app.add_flag("--list", options.list,
               "list the suites; with --mutants, list the mutants, and check that each\n"
               "explanation still names the line of one");
  if (const auto status = exit_of_parse(app, count, arguments)) return *status;
  try {
    return exit_with(tokenyard::simulation::run(options));
  } catch (const std::exception& error) {
    fmt::print(stderr, "simulate: {}\n", error.what());
    return 2;
  }
}
