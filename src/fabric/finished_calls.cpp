#include "fabric/finished_calls.hpp"

#include <algorithm>
#include <cstring>
#include <span>

#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

struct FinishedWord {
  uint64_t goes_on, finished;
};

}  // namespace

std::span<const std::byte> AgreedCalls::state() const {
  if (!first) return {};
  return ranks[*first]->state;
}

AgreedCalls agree_on_calls(World& world, const std::string& object,
                           const std::optional<FinishedCalls>& mine) {
  const FinishedWord word{.goes_on = mine ? 1u : 0u, .finished = mine ? mine->finished : 0};
  std::vector<std::byte> bytes(sizeof(word));
  std::memcpy(bytes.data(), &word, sizeof(word));
  if (mine) bytes.insert(bytes.end(), mine->state.begin(), mine->state.end());
  const auto everybody = world.all_gather(bytes, object + ": finished calls");
  AgreedCalls agreed;
  agreed.ranks.resize(everybody.size());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank) {
    const std::span<const std::byte> theirs(everybody[rank]);
    if (theirs.empty()) continue;  // An absent rank.
    FinishedWord said{};
    if (theirs.size() < sizeof(said))
      throw InvalidArgument(object, "a rank of the same build", "another one", rank);
    std::memcpy(&said, theirs.data(), sizeof(said));
    if (said.goes_on == 0) {
      agreed.newcomers.push_back(rank);
      continue;
    }
    const auto state = theirs.subspan(sizeof(said));
    agreed.ranks[rank] = FinishedCalls{said.finished, {state.begin(), state.end()}};
    if (!agreed.first || said.finished < agreed.ranks[*agreed.first]->finished) agreed.first = rank;
  }
  if (agreed.first)
    agreed.finished = agreed.ranks[*agreed.first]->finished;
  else
    agreed.newcomers.clear();
  return agreed;
}

std::vector<uint32_t> lost_between(const World& before, const World& now,
                                   const std::vector<uint32_t>& newcomers) {
  std::vector<uint32_t> lost;
  for (const uint32_t rank : present_ranks(before)) {
    const bool is_new = std::ranges::binary_search(newcomers, rank);
    if (is_new || rank >= now.size() || !is_present(now, rank)) lost.push_back(rank);
  }
  return lost;
}

}  // namespace tokenyard
