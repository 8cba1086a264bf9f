/// The tokens of one rank, and the expected results for all ranks' tokens, made on the host without
/// the code that is measured.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tokenyard/error.hpp"

namespace tokenyard::bench {

struct Shape {
  uint32_t ranks, tokens, hidden, topk, experts;
};

/// Throws InvalidArgument unless the ranks divide the experts: the library does not require it, but
/// the measured claims and the checks assume equal shares.
inline void require_equal_shares(uint32_t experts, uint32_t ranks) {
  if (experts % ranks != 0)
    throw InvalidArgument("experts", fmt::format("a multiple of {} ranks", ranks),
                          std::to_string(experts));
}

struct Workload {
  std::vector<uint16_t> x;        ///< [tokens, hidden] bf16
  std::vector<int64_t> topk_idx;  ///< [tokens, topk], distinct within a row
  std::vector<float> topk_weights;
};

/// Draws a token's distinct experts with probabilities proportional to 1 / rank^skew; 0: uniform.
/// Draws them as the earliest of exponential arrival times at these rates.
class ExpertDraw {
 public:
  ExpertDraw(uint32_t experts, double skew) : rates_(experts), turns_(experts) {
    for (uint32_t expert = 0; expert < experts; ++expert)
      rates_[expert] = std::pow(1.0 / (expert + 1), skew);
    // The same experts are popular with all ranks, and popular ones are not neighbours.
    std::shuffle(rates_.begin(), rates_.end(), std::mt19937(7));
  }

  void draw(std::mt19937& random, uint32_t topk, std::vector<int64_t>& ids) {
    std::exponential_distribution<double> wait;
    for (uint32_t expert = 0; expert < rates_.size(); ++expert)
      turns_[expert] = {wait(random) / rates_[expert], expert};
    std::partial_sort(turns_.begin(), turns_.begin() + topk, turns_.end());
    for (uint32_t k = 0; k < topk; ++k) ids.push_back(turns_[k].second);
  }

 private:
  std::vector<double> rates_;
  std::vector<std::pair<double, uint32_t>> turns_;
};

/// Draws the destinations of a rank's tokens; every rank draws the same for a given rank and set.
inline Workload make_choices(const Shape& shape, uint32_t rank, uint32_t set, double skew = 0) {
  std::mt19937 random(1000 * set + rank + 1);
  ExpertDraw experts(shape.experts, skew);
  Workload made;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    experts.draw(random, shape.topk, made.topk_idx);
    for (uint32_t k = 0; k < shape.topk; ++k)
      made.topk_weights.push_back(static_cast<float>(random() % 1000) * 1e-3f);
  }
  return made;
}

/// Draws destinations and rows: any bits but NaN and infinity, magnitudes below 2.
inline Workload make_workload(const Shape& shape, uint32_t rank, uint32_t set, double skew = 0) {
  Workload made = make_choices(shape, rank, set, skew);
  std::mt19937 random(1000 * set + rank + 500);
  made.x.resize(size_t{shape.tokens} * shape.hidden);
  for (size_t i = 0; i < made.x.size(); i += 2) {
    const uint32_t bits = random();
    made.x[i] = bits & 0xbfff;
    if (i + 1 < made.x.size()) made.x[i + 1] = (bits >> 16) & 0xbfff;
  }
  return made;
}

/// Returns [tokens][ranks] whether the token has an expert on the rank.
inline std::vector<uint8_t> destinations(const Shape& shape, const Workload& workload) {
  std::vector<uint8_t> goes(size_t{shape.tokens} * shape.ranks);
  const uint32_t local = shape.experts / shape.ranks;
  for (uint32_t token = 0; token < shape.tokens; ++token)
    for (uint32_t k = 0; k < shape.topk; ++k)
      goes[token * shape.ranks + workload.topk_idx[token * shape.topk + k] / local] = 1;
  return goes;
}

/// Returns the largest number of rows that a rank sends to, or receives from, all others together.
inline uint64_t busiest_remote_rows(const Shape& shape, uint32_t set, double skew = 0) {
  std::vector<uint64_t> out(shape.ranks), in(shape.ranks);
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const auto goes = destinations(shape, make_choices(shape, source, set, skew));
    for (uint32_t token = 0; token < shape.tokens; ++token)
      for (uint32_t target = 0; target < shape.ranks; ++target)
        if (target != source && goes[token * shape.ranks + target]) ++out[source], ++in[target];
  }
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) most = std::max({most, out[rank], in[rank]});
  return most;
}

}  // namespace tokenyard::bench
