/// A breakdown of a call's time.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "bench/harness/report.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {

/// Returns the moments of the last call in the order in which they were first reached.
inline std::vector<Moment> moments_of(const std::vector<ExpertParallel::Moment>& trace) {
  std::map<std::string, std::vector<uint64_t>> reached;
  for (const ExpertParallel::Moment& moment : trace) reached[moment.name].push_back(moment.ns);
  if (!reached.contains("begun")) return {};
  const std::vector<uint64_t>& starts = reached["begun"];
  const uint64_t begun = *std::min_element(starts.begin(), starts.end());
  std::vector<Moment> moments;
  for (auto& [name, ns] : reached) {
    // Earlier calls of other kinds have moments that this kind lacks.
    std::erase_if(ns, [&](uint64_t at) { return at < begun; });
    if (ns.empty()) continue;
    std::sort(ns.begin(), ns.end());
    const auto us = [&](uint64_t at) { return static_cast<double>(at - begun) * 1e-3; };
    moments.push_back({name, us(ns.front()), us(ns[ns.size() / 2]), us(ns.back())});
  }
  std::sort(moments.begin(), moments.end(),
            [](const Moment& one, const Moment& other) { return one.first < other.first; });
  return moments;
}

inline void print(const std::vector<Moment>& moments, const char* what) {
  fmt::print("moments of {}, rank 0\n", what);
  for (const Moment& moment : moments)
    fmt::print("{:>10}  {:7.1f} {:7.1f} {:7.1f}\n", moment.name, moment.first, moment.middle,
               moment.last);
}

}  // namespace tokenyard::bench
