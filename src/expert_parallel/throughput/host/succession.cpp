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
  std::optional<uint32_t> first;
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
    const auto map = theirs.subspan(sizeof(said));
    if (!first) {
      first = rank;
      agreed.finished = said.finished;
      agreed.map.resize(map.size() / sizeof(int32_t));
      if (!map.empty()) std::memcpy(agreed.map.data(), map.data(), map.size());
      continue;
    }
    agreed.finished = std::min(agreed.finished, said.finished);
    if (!std::ranges::equal(map, std::span(everybody[*first]).subspan(sizeof(said))))
      throw InvalidArgument("expert_at", fmt::format("the same map as on rank {}", *first),
                            "another map", rank);
  }
  return agreed;
}

}  // namespace tokenyard::throughput
