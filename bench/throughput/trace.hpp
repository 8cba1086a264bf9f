/// Where the time of a call goes.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

/// Of the last call: when the first block reached each moment, the middle one and the last one, in
/// us after the first one began.
inline void print_trace(const std::vector<ExpertParallel::Moment>& trace, const char* what) {
  std::map<std::string, std::vector<uint64_t>> moments;
  uint64_t begun = UINT64_MAX;
  for (const ExpertParallel::Moment& moment : trace) {
    moments[moment.name].push_back(moment.ns);
    begun = std::min(begun, moment.ns);
  }
  std::vector<std::pair<uint64_t, std::string>> lines;
  for (auto& [name, ns] : moments) {
    std::sort(ns.begin(), ns.end());
    const auto us = [&](uint64_t at) { return static_cast<double>(at - begun) * 1e-3; };
    lines.emplace_back(ns.front(),
                       fmt::format("{:>10}  {:7.1f} {:7.1f} {:7.1f}", name, us(ns.front()),
                                   us(ns[ns.size() / 2]), us(ns.back())));
  }
  std::sort(lines.begin(), lines.end());
  fmt::print("moments of {}, rank 0\n", what);
  for (const auto& [ns, line] : lines) fmt::print("{}\n", line);
}

}  // namespace tokenyard::bench
