#include "expert_parallel/throughput/host/succession.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "fabric/finished_calls.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::throughput {

Succession Succession::agree(World& world, const std::optional<Legacy>& mine) {
  std::optional<FinishedCalls> finished;
  if (mine) {
    const auto map = std::as_bytes(std::span(mine->map));
    finished = FinishedCalls{mine->finished, {map.begin(), map.end()}};
  }
  AgreedCalls calls = agree_on_calls(world, "ExpertParallel", finished);
  Succession agreed{.finished = calls.finished, .map = {}, .newcomers = std::move(calls.newcomers)};
  const std::span<const std::byte> map = calls.state();
  agreed.map.resize(map.size() / sizeof(int32_t));
  if (!map.empty()) std::memcpy(agreed.map.data(), map.data(), map.size());
  for (uint32_t rank = 0; rank < calls.ranks.size(); ++rank) {
    const std::optional<FinishedCalls>& theirs = calls.ranks[rank];
    if (theirs && theirs->finished == agreed.finished && !std::ranges::equal(theirs->state, map))
      throw InvalidArgument("expert_at", fmt::format("the same map as on rank {}", *calls.first),
                            "another map", rank);
  }
  return agreed;
}

}  // namespace tokenyard::throughput
