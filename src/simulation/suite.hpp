/// Simulator suites: programs determined by a seed, run once per seed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/finding.hpp"
#include "simulation/mutation.hpp"
#include "simulation/random.hpp"
#include "simulation/trace.hpp"

namespace tokenyard::simulation {

/// Thrown when a seed shows a fault. The text describes it.
class SuiteFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One seed's run: where its chance comes from, and what is to be told of it.
class SeedRun {
 public:
  SeedRun(uint64_t seed, Trace& trace, Mutator* mutator)
      : seed(seed), random(seed), trace(trace), mutator(mutator) {}

  /// Notes an option that the seed has drawn: failures print them first.
  template <class T>
  T option(std::string_view name, T value) {
    options += fmt::format("{}{} = {}", options.empty() ? "" : ", ", name, value);
    if (on_option) on_option(options);
    return value;
  }
  template <class... Arguments>
  void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    if (!holds) throw SuiteFailure(fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  const uint64_t seed;
  Random random;
  Trace& trace;
  Mutator* const mutator;  ///< null in an ordinary run
  std::string options;
  /// Called with all of them so far: a run that hangs or crashes tells nothing later.
  std::function<void(const std::string& options)> on_option;
};

struct Suite {
  std::string name;
  std::string what;  ///< in a sentence
  std::function<void(SeedRun&)> run;
  /// Mutants that no suite can catch, and why: those at a "file:line", or anywhere in a "file".
  struct Explained {
    Fault fault;
    std::string place, reason;
  };
  std::vector<Explained> explained = {};
  uint32_t seeds = 200;  ///< unless told
};

/// Suites register when the program starts: `const bool registered = add_suite({...});`
bool add_suite(Suite suite);
const std::vector<Suite>& suites();

}  // namespace tokenyard::simulation
