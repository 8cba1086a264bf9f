/// A plain reference of dispatch and combine: only loops, no devices and no concurrent ranks.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

namespace tokenyard::test {

struct Shape {
  uint32_t ranks = 4, experts = 16, hidden = 64, topk = 4;

  /// Requires that the ranks divide the experts.
  uint32_t local_experts() const { return experts / ranks; }
  /// The first experts % ranks ranks hold one more than the others.
  uint32_t local_experts(uint32_t rank) const {
    return experts / ranks + (rank < experts % ranks ? 1 : 0);
  }
  uint32_t first_expert(uint32_t rank) const {
    uint32_t first = 0;
    for (uint32_t before = 0; before < rank; ++before) first += local_experts(before);
    return first;
  }
  bool holds(uint32_t rank, int64_t id) const {
    return id >= first_expert(rank) && id < int64_t{first_expert(rank)} + local_experts(rank);
  }
};

/// Input of one rank.
struct Tokens {
  uint32_t count = 0;
  std::vector<uint16_t> x;     ///< [count, hidden] bf16
  std::vector<int64_t> ids;    ///< [count, topk]
  std::vector<float> weights;  ///< [count, topk]
};

/// The token that a received row belongs to.
struct Row {
  uint32_t source, token;
};

/// Rows and metadata that a rank must receive.
struct Expected {
  std::vector<Row> rows;
  std::vector<uint16_t> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> sources;
  std::vector<uint32_t> rows_from, tokens_per_expert;
};

inline float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

/// Rounds to nearest even; finite values only.
inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint32_t scramble(uint32_t value) {
  value ^= value >> 16;
  value *= 0x7feb352du;
  value ^= value >> 15;
  value *= 0x846ca68bu;
  return value ^ value >> 16;
}

/// How tokens choose experts.
struct Picking {
  double none = 0;          ///< share of choices that are -1
  bool one_expert = false;  ///< every token chooses expert 0 and no other
};

inline Tokens random_tokens(const Shape& shape, uint32_t count, const Picking& picking,
                            std::mt19937& random) {
  Tokens tokens;
  tokens.count = count;
  for (size_t i = 0; i < size_t{count} * shape.hidden; ++i)
    tokens.x.push_back(to_bf16(static_cast<float>(static_cast<int32_t>(random())) * 1e-6f));
  std::vector<int64_t> experts(shape.experts);
  for (uint32_t expert = 0; expert < shape.experts; ++expert) experts[expert] = expert;
  for (uint32_t token = 0; token < count; ++token) {
    for (uint32_t choice = 0; choice < shape.topk; ++choice) {
      std::swap(experts[choice], experts[choice + random() % (shape.experts - choice)]);
      const bool none = random() % 1000 < picking.none * 1000;
      int64_t id = none ? -1 : experts[choice];
      if (picking.one_expert) id = choice == shape.topk - 1 ? 0 : -1;
      tokens.ids.push_back(id);
      tokens.weights.push_back(0.25f + static_cast<float>(random() % 1000) * 1e-3f);
    }
  }
  return tokens;
}

/// Returns whether a token has a choice on a rank.
inline bool goes_to(const Shape& shape, const Tokens& tokens, uint32_t token, uint32_t rank) {
  for (uint32_t choice = 0; choice < shape.topk; ++choice) {
    const int64_t id = tokens.ids[size_t{token} * shape.topk + choice];
    if (shape.holds(rank, id)) return true;
  }
  return false;
}

inline Expected expected_on(const Shape& shape, const std::vector<Tokens>& all, uint32_t rank) {
  Expected expected;
  expected.tokens_per_expert.resize(shape.local_experts(rank));
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const Tokens& tokens = all[source];
    expected.rows_from.push_back(0);
    for (uint32_t token = 0; token < tokens.count; ++token) {
      if (!goes_to(shape, tokens, token, rank)) continue;
      ++expected.rows_from.back();
      expected.rows.push_back({source, token});
      expected.sources.push_back(static_cast<int32_t>(token));
      const auto x = tokens.x.begin() + size_t{token} * shape.hidden;
      expected.x.insert(expected.x.end(), x, x + shape.hidden);
      for (uint32_t choice = 0; choice < shape.topk; ++choice) {
        const size_t at = size_t{token} * shape.topk + choice;
        const int64_t id = tokens.ids[at];
        const bool here = shape.holds(rank, id);
        const auto local = static_cast<int32_t>(id - shape.first_expert(rank));
        expected.ids.push_back(here ? local : -1);
        expected.weights.push_back(here ? tokens.weights[at] : 0.0f);
        if (here) ++expected.tokens_per_expert[local];
      }
    }
  }
  return expected;
}

/// Returns an experts' result for a row, which depends on rank, row, column and the number of the
/// call, so that a result left over from another call is wrong.
inline uint16_t expert_value(uint32_t rank, Row row, uint32_t column, uint32_t call = 0) {
  const uint32_t place = ((rank * 64 + row.source) * 65536 + row.token) * 8192 + column;
  const uint32_t hash = scramble(place + call * 0x9e3779b9u);
  return to_bf16(static_cast<float>(static_cast<int32_t>(hash)) * (hash & 7 ? 1e-9f : 1e-6f));
}

inline std::vector<uint16_t> expert_rows(const Shape& shape, const Expected& received,
                                         uint32_t rank, uint32_t call = 0) {
  std::vector<uint16_t> y;
  for (const Row row : received.rows)
    for (uint32_t column = 0; column < shape.hidden; ++column)
      y.push_back(expert_value(rank, row, column, call));
  return y;
}

/// Returns the result of combine on a rank, given expert_rows of all ranks: fp32 sums in rank
/// order, rounded once.
inline std::vector<uint16_t> expected_sums(const Shape& shape, const Tokens& tokens, uint32_t rank,
                                           uint32_t call = 0) {
  std::vector<uint16_t> out;
  for (uint32_t token = 0; token < tokens.count; ++token)
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      float sum = 0;
      for (uint32_t there = 0; there < shape.ranks; ++there)
        if (goes_to(shape, tokens, token, there))
          sum += from_bf16(expert_value(there, {rank, token}, column, call));
      out.push_back(to_bf16(sum));
    }
  return out;
}

/// Returns the weights that combine returns: a choice's own weight if it has an expert, else 0.
inline std::vector<float> expected_weights(const Tokens& tokens) {
  std::vector<float> out;
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    out.push_back(tokens.ids[i] < 0 ? 0.0f : tokens.weights[i]);
  return out;
}

}  // namespace tokenyard::test
