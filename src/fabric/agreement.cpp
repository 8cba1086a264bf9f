#include "fabric/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fabric/world_access.hpp"

namespace tokenyard {

void require(bool holds, const char* argument, std::string expected, uint64_t seen) {
  if (!holds) throw InvalidArgument(argument, std::move(expected), std::to_string(seen));
}

void require_equal(const char* argument, uint32_t rank, uint32_t first, uint32_t expected,
                   uint32_t seen) {
  if (expected == seen) return;
  throw InvalidArgument(argument, fmt::format("{} as on rank {}", expected, first),
                        std::to_string(seen), rank);
}

World& with_filled_slots(World& world, const std::string& object) {
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    if (is_present(world, rank)) continue;
    throw InvalidArgument(
        "world",
        "a process in every slot for " + object + "; a compact world of the job has no other",
        "an empty slot", rank);
  }
  return world;
}

bool spans_hosts(const World& world) {
  const std::vector<PeerReach>& peers = world.topology().peers;
  return std::ranges::any_of(present_ranks(world),
                             [&](uint32_t rank) { return peers[rank].reach == Reach::put_signal; });
}

uint32_t first_unreachable(const World& world) {
  for (const uint32_t rank : present_ranks(world)) {
    const Reach reach = world.topology().peers[rank].reach;
    if (reach != Reach::self && reach != Reach::load_store) return rank;
  }
  return kAllReached;
}

void require_reach(const World& world, const std::string& object,
                   const std::vector<uint32_t>& unreachable) {
  for (const uint32_t rank : present_ranks(world)) {
    const uint32_t peer = unreachable[rank];
    if (peer == kAllReached) continue;
    throw Unsupported(
        object,
        fmt::format("rank {} cannot load from and store to rank {}{}", rank, peer,
                    rank == world.rank() ? ": " + world.topology().peers[peer].why_not : ""));
  }
}

}  // namespace tokenyard
