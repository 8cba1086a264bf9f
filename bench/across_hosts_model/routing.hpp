/// How tokens choose experts, and what follows for hosts, without the code that is modelled.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/harness/workload.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::bench {

enum class Routing : uint8_t {
  uniform,        ///< every set of experts is as likely
  zipf,           ///< the r-th most popular expert has a weight of 1 / r^1.2
  group_limited,  ///< the best experts of the four hosts that have the best ones
};

inline constexpr double kZipfExponent = 1.2;
inline constexpr uint32_t kGroupsChosen = 4;

inline Routing routing_of(const std::string& name) {
  if (name == "uniform") return Routing::uniform;
  if (name == "zipf") return Routing::zipf;
  if (name == "group-limited") return Routing::group_limited;
  throw InvalidArgument("--routing", "uniform, zipf or group-limited", name);
}

/// A world of hosts with as many ranks each, which hold the experts in equal shares.
struct RoutedShape {
  uint32_t hosts, locals, experts, topk, tokens;
  Routing routing = Routing::uniform;

  uint32_t ranks() const { return hosts * locals; }
  uint32_t experts_per_rank() const { return experts / ranks(); }
  uint32_t experts_per_host() const { return experts / hosts; }
};

/// Returns the distinct experts of a rank's tokens: [tokens, topk].
inline std::vector<int64_t> choices_of(const RoutedShape& shape, uint32_t rank) {
  std::vector<int64_t> ids;
  ids.reserve(size_t{shape.tokens} * shape.topk);
  std::mt19937 random(rank + 1);
  if (shape.routing != Routing::group_limited) {
    ExpertDraw experts(shape.experts, shape.routing == Routing::zipf ? kZipfExponent : 0);
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      const auto first = static_cast<int64_t>(ids.size());
      experts.draw(random, shape.topk, ids);
      std::sort(ids.begin() + first, ids.end());
    }
    return ids;
  }
  std::vector<float> scores(shape.experts);
  std::vector<uint32_t> hosts(shape.hosts), experts;
  std::uniform_real_distribution<float> score;
  const uint32_t of_host = shape.experts_per_host();
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    std::ranges::generate(scores, [&] { return score(random); });
    const auto best = [&](uint32_t host) {
      const auto first = scores.begin() + host * of_host;
      return *std::max_element(first, first + of_host);
    };
    std::iota(hosts.begin(), hosts.end(), 0);
    std::ranges::sort(hosts, [&](uint32_t a, uint32_t b) { return best(a) > best(b); });
    experts.clear();
    for (uint32_t i = 0; i < std::min(kGroupsChosen, shape.hosts); ++i)
      for (uint32_t expert = 0; expert < of_host; ++expert)
        experts.push_back(hosts[i] * of_host + expert);
    std::ranges::partial_sort(experts, experts.begin() + shape.topk,
                              [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    std::sort(experts.begin(), experts.begin() + shape.topk);
    ids.insert(ids.end(), experts.begin(), experts.begin() + shape.topk);
  }
  return ids;
}

/// Returns the ranks of each host that tokens go to, as bits: [tokens, hosts].
inline std::vector<uint8_t> ranks_chosen(const RoutedShape& shape,
                                         const std::vector<int64_t>& ids) {
  std::vector<uint8_t> chosen(size_t{shape.tokens} * shape.hosts, 0);
  for (size_t choice = 0; choice < ids.size(); ++choice) {
    const auto rank = static_cast<uint32_t>(ids[choice]) / shape.experts_per_rank();
    chosen[choice / shape.topk * shape.hosts + rank / shape.locals] |=
        static_cast<uint8_t>(1u << rank % shape.locals);
  }
  return chosen;
}

}  // namespace tokenyard::bench
