#include "expert_parallel/low_latency/kernels/phase.hpp"

#include <vector>

namespace tokenyard::low_latency {

std::span<const std::string> phase_names() {
  static const std::vector<std::string> names = {"left out by the caller",
                                                 "low latency dispatch: room",
                                                 "low latency dispatch: ids",
                                                 "low latency dispatch: rows",
                                                 "low latency combine: room",
                                                 "low latency combine: weights",
                                                 "low latency combine: sums",
                                                 "low latency dispatch: format of rows",
                                                 "low latency combine: format of sums",
                                                 "low latency between hosts: room",
                                                 "low latency dispatch: message",
                                                 "low latency combine: message with weights",
                                                 "low latency combine: message with sums",
                                                 "low latency between hosts: own waits"};
  return names;
}

}  // namespace tokenyard::low_latency
