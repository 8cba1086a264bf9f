#include "expert_parallel/throughput/host/succession.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "tokenyard/error.hpp"

namespace tokenyard::throughput {

namespace {

struct Word {
  uint64_t goes_on, finished;
};

}  // namespace

Succession Succession::agree(World& world, const std::optional<Legacy>& mine) {
  const Word word{.goes_on = mine ? 1u : 0u, .finished = mine ? mine->finished : 0};
  std::vector<std::byte> bytes(sizeof(word));
  std::memcpy(bytes.data(), &word, sizeof(word));
  if (mine) {
    const auto map = std::as_bytes(std::span(mine->map));
    bytes.insert(bytes.end(), map.begin(), map.end());
  }
  const auto everybody = world.all_gather(bytes, "ExpertParallel: finished calls and expert map");
  Succession agreed;
  std::optional<uint32_t> first;  // The first of those that have finished the fewest calls.
  const auto map_of = [&](uint32_t rank) {
    return std::span(everybody[rank]).subspan(sizeof(Word));
  };
  std::vector<std::optional<uint64_t>> finished(everybody.size());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank) {
    const std::span<const std::byte> theirs(everybody[rank]);
    if (theirs.empty()) continue;  // An absent rank.
    Word said{};
    if (theirs.size() < sizeof(said))
      throw InvalidArgument("ExpertParallel", "a rank of the same build", "another one", rank);
    std::memcpy(&said, theirs.data(), sizeof(said));
    if (said.goes_on == 0) {
      agreed.newcomers.push_back(rank);
      continue;
    }
    finished[rank] = said.finished;
    if (!first || said.finished < *finished[*first]) first = rank;
  }
  if (!first) return agreed;
  agreed.finished = *finished[*first];
  const auto map = map_of(*first);
  agreed.map.resize(map.size() / sizeof(int32_t));
  if (!map.empty()) std::memcpy(agreed.map.data(), map.data(), map.size());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank)
    if (finished[rank] == agreed.finished && !std::ranges::equal(map, map_of(rank)))
      throw InvalidArgument("expert_at", fmt::format("the same map as on rank {}", *first),
                            "another map", rank);
  return agreed;
}

}  // namespace tokenyard::throughput
