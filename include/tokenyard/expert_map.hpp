/// Where the experts of an exchange are. An expert map lists the expert that each place holds, rank
/// after rank, or -1 for an empty place. With n places, each rank has n / ranks of them, and the
/// first n % ranks ranks have one more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tokenyard {

/// Returns the map with which exchanges go on after ranks are lost: the places of those ranks are
/// empty, and an expert that thereby has no place any more gets an empty place of a rank that
/// lives, as far as there are any. `expert_at`: [places] before any rank was lost; `living`:
/// [ranks] whether each is there.
///
/// Experts find places in the order of their numbers, each on the rank that then holds the fewest
/// experts, of several the first. So the result depends on the arguments alone, and all ranks that
/// agree on these agree on it. Throws InvalidArgument for a number below -1, and without ranks.
std::vector<int32_t> spread_lost_experts(std::span<const int32_t> expert_at,
                                         const std::vector<bool>& living);

}  // namespace tokenyard
