/// Simulator suites: programs determined by a seed, which run once per seed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/finding.hpp"
#include "simulation/mutation.hpp"
#include "simulation/random.hpp"
#include "simulation/trace.hpp"

namespace tokenyard::simulation {

/// Thrown when a seed finds a fault. The text describes the fault.
class SuiteFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One seed's run: its source of randomness, and its trace and options for reports.
class SeedRun {
 public:
  SeedRun(uint64_t seed, Trace& trace, Mutator* mutator)
      : seed(seed), random(seed), trace(trace), mutator(mutator) {}

  /// Notes an option that the seed has drawn; failures print all options first.
  template <class T>
  T option(std::string_view name, T value) {
    options += fmt::format("{}{} = {}", options.empty() ? "" : ", ", name, value);
    if (on_option) on_option(options);
    return value;
  }
  /// Notes that this run has reached a state, which the suite lists in `reaches`.
  void reach(std::string_view state) { reached.emplace(state); }
  template <class... Arguments>
  void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (!holds) throw SuiteFailure(fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  const uint64_t seed;
  Random random;
  Trace& trace;
  Mutator* const mutator;  ///< null in an ordinary run
  std::string options;
  std::set<std::string> reached;
  /// Called with all options so far, because a run that hangs or crashes reports nothing later.
  std::function<void(const std::string& options)> on_option;
};

struct Suite {
  std::string name;
  std::string what;  ///< description in one sentence
  std::function<void(SeedRun&)> run;
  /// A mutant that no suite can catch, and the reason. `place` is "file:line", or a whole "file".
  struct Explained {
    Fault fault;
    std::string place, reason;
  };
  std::vector<Explained> explained = {};
  /// A state in which alone some faults show. A sweep of at least `within` seeds fails if none of
  /// its seeds has reached it.
  struct Reaches {
    std::string state;
    uint32_t within;
  };
  std::vector<Reaches> reaches = {};
  uint32_t seeds = 200;  ///< default number of seeds per run
};

/// Registers a suite when the program starts: `const bool registered = add_suite({...});`
bool add_suite(Suite suite);
const std::vector<Suite>& suites();

}  // namespace tokenyard::simulation
