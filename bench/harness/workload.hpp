/// The tokens of one rank and what should become of all ranks' tokens: made plainly, on the host,
/// and without a line of the code that is measured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace tokenyard::bench {

struct Shape {
  uint32_t ranks, tokens, hidden, topk, experts;
};

struct Workload {
  std::vector<uint16_t> x;        ///< [tokens, hidden] bf16
  std::vector<int64_t> topk_idx;  ///< [tokens, topk], distinct in a row, uniform over the experts
  std::vector<float> topk_weights;
};

/// The same for a rank and set wherever it is made.
inline Workload make_workload(const Shape& shape, uint32_t rank, uint32_t set) {
  std::mt19937 random(1000 * set + rank + 1);
  Workload made;
  made.x.resize(size_t{shape.tokens} * shape.hidden);
  for (size_t i = 0; i < made.x.size(); i += 2) {
    const uint32_t bits = random();  // Any bits but NaN and infinity: numbers of all sizes below 2.
    made.x[i] = bits & 0xbfff;
    if (i + 1 < made.x.size()) made.x[i + 1] = (bits >> 16) & 0xbfff;
  }
  std::vector<int64_t> deck(shape.experts);
  for (uint32_t e = 0; e < shape.experts; ++e) deck[e] = e;
  for (uint32_t token = 0; token < shape.tokens; ++token)
    for (uint32_t k = 0; k < shape.topk; ++k) {
      std::swap(deck[k], deck[k + random() % (shape.experts - k)]);
      made.topk_idx.push_back(deck[k]);
      made.topk_weights.push_back(static_cast<float>(random() % 1000) * 1e-3f);
    }
  return made;
}

/// [tokens][ranks]: whether the token has an expert there.
inline std::vector<uint8_t> destinations(const Shape& shape, const Workload& workload) {
  std::vector<uint8_t> goes(size_t{shape.tokens} * shape.ranks);
  const uint32_t local = shape.experts / shape.ranks;
  for (uint32_t token = 0; token < shape.tokens; ++token)
    for (uint32_t k = 0; k < shape.topk; ++k)
      goes[token * shape.ranks + workload.topk_idx[token * shape.topk + k] / local] = 1;
  return goes;
}

/// The most rows that any rank sends to, or receives from, all other ranks together.
inline uint64_t busiest_remote_rows(const Shape& shape, uint32_t set) {
  std::vector<uint64_t> out(shape.ranks), in(shape.ranks);
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const auto goes = destinations(shape, make_workload(shape, source, set));
    for (uint32_t token = 0; token < shape.tokens; ++token)
      for (uint32_t target = 0; target < shape.ranks; ++target)
        if (target != source && goes[token * shape.ranks + target]) ++out[source], ++in[target];
  }
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) most = std::max({most, out[rank], in[rank]});
  return most;
}

}  // namespace tokenyard::bench
