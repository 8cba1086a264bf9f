/// A plain reference of expert maps: the places of choices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "expert_parallel/reference.hpp"

namespace tokenyard::test {

/// In Tokens by place: the place of a choice that is lost.
inline constexpr int64_t kLostChoice = -2;

/// The expert map of a test. The experts of its Shape are the places.
struct Mapped {
  uint32_t experts = 0;
  std::vector<int32_t> expert_at;  ///< [places]; empty: every place holds the expert of its number
  std::set<uint32_t> without;      ///< ranks that take no part, as all others know

  bool given() const { return !expert_at.empty(); }

  /// Returns the place of a choice: those of the expert in turn, by token and rank.
  int64_t place(const Shape& shape, int64_t expert, uint32_t token, uint32_t rank) const {
    if (expert < 0) return expert;
    std::vector<int64_t> places;
    for (uint32_t holder = 0; holder < shape.ranks; ++holder)
      for (uint32_t i = 0; i < shape.local_experts(holder) && !without.contains(holder); ++i)
        if (expert_at[shape.first_expert(holder) + i] == expert)
          places.push_back(shape.first_expert(holder) + i);
    return places.empty() ? kLostChoice : places[(token + rank) % places.size()];
  }
  /// Returns a rank's tokens by place.
  Tokens placed(const Shape& shape, Tokens tokens, uint32_t rank) const {
    for (size_t i = 0; given() && i < tokens.ids.size(); ++i)
      tokens.ids[i] = place(shape, tokens.ids[i], static_cast<uint32_t>(i / shape.topk), rank);
    return tokens;
  }
  /// Returns the Shape by whose experts tokens choose.
  Shape named(Shape shape) const {
    if (given()) shape.experts = experts;
    return shape;
  }
};

/// Draws a map of so many places: replicas, empty places, experts without a place. `below(n)` draws
/// a number below n.
template <class Below>
Mapped draw_map(uint32_t places, uint32_t experts, Below below) {
  Mapped map{.experts = experts, .expert_at = {}, .without = {}};
  const uint32_t empty = below(4);
  for (uint32_t place = 0; place < places; ++place)
    map.expert_at.push_back(below(8) < empty ? -1 : static_cast<int32_t>(below(experts)));
  return map;
}

}  // namespace tokenyard::test
