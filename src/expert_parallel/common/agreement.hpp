/// What ranks tell one another before they make an object together, so that all of them refuse
/// alike what does not fit.
#pragma once

#include <string>
#include <vector>

#include "tokenyard/world.hpp"

namespace tokenyard {

/// Throws InvalidArgument unless it holds.
void require(bool holds, const char* argument, std::string expected, uint64_t seen);
/// Throws InvalidArgument naming `rank` unless it has seen what rank 0 has.
void require_equal(const char* argument, uint32_t rank, uint32_t on_rank_0, uint32_t seen);

inline constexpr uint32_t kAllReached = 0xffffffff;
/// The first rank that this one cannot reach by loads and stores, or kAllReached.
uint32_t first_unreachable(const World& world);
/// `unreachable` [ranks] what first_unreachable said on each. Throws Unsupported, on all ranks
/// alike, if some rank cannot reach another.
void require_reach(const World& world, const std::string& object,
                   const std::vector<uint32_t>& unreachable);

}  // namespace tokenyard
