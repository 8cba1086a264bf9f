/// What a benchmark measured, as a table for people and as bench/results/NAME.json for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// Of one case over its repetitions, the slowest rank of each.
struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> samples);

/// Of a call: when the first block came to it, the middle one and the last one, in us after the
/// first one began.
struct Moment {
  std::string name;
  double first, middle, last;
};

struct Row {
  std::string name;  ///< "dispatch bf16 uncached"
  uint32_t gpus, ranks, tokens, hidden, sms;
  Spread ours;   ///< us
  double floor;  ///< us: the bytes of the busiest rank at the rate of its link; 0 if there is none
  std::vector<Moment> moments = {};  ///< of its last call, if it was traced
};

class Report {
 public:
  /// `name` becomes bench/results/name.json.
  Report(std::string name, const World& world);
  void add(const Row& row);
  /// Prints the table; writes the file unless `path` is empty.
  void finish(const std::string& path) const;

 private:
  std::string name_, gpu_;
  std::vector<Row> rows_;
};

}  // namespace tokenyard::bench
