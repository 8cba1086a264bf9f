/// What ranks tell one another before they make an object together, so that all of them refuse
/// alike what does not fit.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <span>
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

/// Collective: [ranks] what each proposes for the object of this name.
template <class Proposal>
std::vector<Proposal> gather_proposals(World& world, const std::string& object,
                                       const Proposal& mine) {
  const auto everybody = world.all_gather(std::as_bytes(std::span(&mine, 1)), object + ": options");
  std::vector<Proposal> proposals(everybody.size());
  for (size_t rank = 0; rank < everybody.size(); ++rank) {
    if (everybody[rank].size() != sizeof(Proposal))
      throw InternalError(fmt::format("rank {} proposed {} bytes of options instead of {}", rank,
                                      everybody[rank].size(), sizeof(Proposal)));
    std::memcpy(&proposals[rank], everybody[rank].data(), sizeof(Proposal));
  }
  return proposals;
}

}  // namespace tokenyard
