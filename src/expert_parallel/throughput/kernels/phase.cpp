#include "expert_parallel/throughput/kernels/phase.hpp"

#include <vector>

namespace tokenyard::throughput {

std::span<const std::string> phase_names() {
  static const std::vector<std::string> names = {
      "dispatch: ready word", "dispatch: counts",    "dispatch: experts", "dispatch: refusal",
      "dispatch: routes",     "dispatch: metadata",  "dispatch: places",  "dispatch: load",
      "dispatch: arrivals",   "combine: ready word", "combine: results",  "combine: stage",
      "combine: load",        "combine: pulls"};
  return names;
}

}  // namespace tokenyard::throughput
