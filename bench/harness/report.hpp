/// A benchmark's results, as a printed table and as bench/results/NAME.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// Times of one case over its repetitions, each of the slowest rank.
struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> samples);

/// Times at which the first, the median and the last block reached a moment of a call, in us since
/// the first block began.
struct Moment {
  std::string name;
  double first, middle, last;
};

/// Times of another program, or library, for the same case in the same run.
struct PeerTimes {
  std::string name;
  Spread times;
};

struct Row {
  std::string name;  ///< "dispatch bf16 uncached"
  uint32_t gpus, ranks, tokens, hidden, sms;
  Spread ours;   ///< us
  double floor;  ///< us to move the busiest rank's bytes at its link's rate; 0 if there is none
  std::optional<PeerTimes> peer = std::nullopt;
  std::vector<Moment> moments = {};  ///< moments of the last call, if it was traced
};

class Report {
 public:
  /// `name`: the NAME of bench/results/NAME.json.
  Report(std::string name, const World& world);
  void add(const Row& row);
  /// Prints the table; writes the file unless `path` is empty.
  void finish(const std::string& path) const;

 private:
  std::string name_, gpu_;
  std::vector<Row> rows_;
};

}  // namespace tokenyard::bench
