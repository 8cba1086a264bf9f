/// Lets algorithms for powers of two run among any number of ranks. The largest power of two of
/// them is inside; each of the rest hands its part to a neighbour inside, which acts for both.
#pragma once

#include <bit>
#include <cstdint>

#include "collectives/interfaces/attempt.hpp"

namespace tokenyard::collectives {

struct Fold {
  enum class Role { inside, inside_for_two, outside };

  uint32_t inside;  ///< number of ranks inside, a power of two
  uint32_t extra;   ///< number of ranks outside
  Role role;
  uint32_t partner = 0;  ///< the rank that this one acts for, or that acts for it
  uint32_t place = 0;    ///< place among the ranks inside

  /// Of the first 2 x extra places, the even ones are outside, each represented by the next odd
  /// one.
  explicit Fold(const Team& team)
      : inside(std::bit_floor(team.size())), extra(team.size() - inside), role(Role::inside) {
    if (team.me >= 2 * extra) {
      place = team.me - extra;
    } else if (team.me % 2 == 0) {
      role = Role::outside;
      partner = team.ranks[team.me + 1];
    } else {
      role = Role::inside_for_two;
      partner = team.ranks[team.me - 1];
      place = team.me / 2;
    }
  }

  uint32_t rank_inside(const Team& team, uint32_t at) const {
    return team.ranks[at < extra ? 2 * at + 1 : at + extra];
  }

  /// Returns the part that a place holds after halving steps from the whole down to `distance`.
  Part range_of(size_t elements, uint32_t at, uint32_t distance) const {
    size_t begin = 0, end = elements;
    for (uint32_t step = inside / 2; step >= distance; step /= 2) {
      const size_t middle = begin + (end - begin) / 2;
      ((at & step) != 0 ? begin : end) = middle;
    }
    return {begin, end - begin};
  }
};

}  // namespace tokenyard::collectives
