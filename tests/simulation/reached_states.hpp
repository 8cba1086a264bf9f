/// Counts, over the seeds of a sweep, the runs that reached each state that their suite lists.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simulation/suite.hpp"

namespace tokenyard::simulation {

class ReachedStates {
 public:
  explicit ReachedStates(const Suite& suite) : suite_(suite) {
    for (const Suite::Reaches& entry : suite.reaches) runs_[entry.state] = 0;
  }

  void add(const std::set<std::string>& reached) {
    ++seeds_;
    for (const std::string& state : reached) ++runs_[state];
  }

  /// Returns one line per state: in how many runs it was reached.
  std::string text() const {
    std::string text;
    for (const auto& [state, runs] : runs_)
      text += fmt::format("{:>7} of {} seeds reach: {}\n", runs, seeds_, state);
    return text;
  }

  /// Returns what is wrong with the draws: listed states that enough seeds have missed, and states
  /// that the suite does not list.
  std::vector<std::string> faults() const {
    std::vector<std::string> faults;
    std::set<std::string> listed;
    for (const auto& [state, within] : suite_.reaches) {
      listed.insert(state);
      if (seeds_ >= within && runs_.at(state) == 0)
        faults.push_back(
            fmt::format("none of {} seeds reaches \"{}\", and one of {} should: "
                        "draw it more often, or list it with more seeds",
                        seeds_, state, within));
    }
    for (const auto& [state, runs] : runs_)
      if (!listed.contains(state))
        faults.push_back(
            fmt::format("\"{}\" is reached and not listed: add it to `reaches`", state));
    return faults;
  }

 private:
  const Suite& suite_;
  uint32_t seeds_ = 0;
  std::map<std::string, uint32_t> runs_;  ///< by state
};

}  // namespace tokenyard::simulation
