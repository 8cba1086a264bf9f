#include "expert_parallel/low_latency/host/members.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "expert_parallel/low_latency/host/epochs.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::low_latency {

namespace {

/// Epochs beyond the last drained one for which a rank may have sent.
constexpr uint32_t kSentAhead = 2;

struct Member {
  uint32_t epoch, has_made_calls;
  uint64_t map_version;
};

struct Introduction {
  Member member{};
  std::vector<std::byte> map;

  static Introduction of(std::span<const std::byte> bytes, uint32_t rank) {
    Introduction introduction;
    if (bytes.size() < sizeof(Member))
      throw InvalidArgument("LowLatency", "a rank of the same build", "another one", rank);
    std::memcpy(&introduction.member, bytes.data(), sizeof(Member));
    const auto map = bytes.subspan(sizeof(Member));
    introduction.map.assign(map.begin(), map.end());
    return introduction;
  }
};

}  // namespace

Members Members::gather(World& world, std::optional<uint32_t> last, const MapSet& map) {
  const Member mine{
      .epoch = last.value_or(0), .has_made_calls = last ? 1u : 0u, .map_version = map.version};
  std::vector<std::byte> bytes(sizeof(mine));
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  const auto map_bytes = std::as_bytes(std::span(map.map));
  bytes.insert(bytes.end(), map_bytes.begin(), map_bytes.end());
  const auto everybody = world.all_gather(bytes, "LowLatency: members");
  Members members{.epoch = epoch_before(world), .map = map, .living = {}, .joined = {}};
  std::vector<std::pair<uint32_t, Introduction>> senior;  // Ranks that have made calls.
  for (uint32_t rank = 0; rank < everybody.size(); ++rank) {
    members.living.push_back(!everybody[rank].empty());
    if (!members.living.back()) continue;  // The slot of a rank that is gone.
    Introduction theirs = Introduction::of(everybody[rank], rank);
    if (theirs.member.has_made_calls == 0) {
      members.joined.push_back(rank);
      continue;
    }
    if (senior.empty() || Epochs::is_later(theirs.member.epoch, members.epoch))
      members.epoch = theirs.member.epoch;
    senior.emplace_back(rank, std::move(theirs));
  }
  if (senior.empty()) {
    members.joined.clear();
    return members;
  }
  const auto newest = std::ranges::max_element(
      senior, {}, [](const auto& one) { return one.second.member.map_version; });
  for (const auto& [rank, theirs] : senior)
    if (theirs.member.map_version == newest->second.member.map_version &&
        theirs.map != newest->second.map)
      throw InvalidArgument("expert_at", fmt::format("the same map as on rank {}", newest->first),
                            "another map", rank);
  const std::vector<std::byte>& agreed = newest->second.map;
  members.map.version = newest->second.member.map_version;
  members.map.map.resize(agreed.size() / sizeof(int32_t));
  std::memcpy(members.map.map.data(), agreed.data(), agreed.size());
  members.epoch += kSentAhead;
  return members;
}

}  // namespace tokenyard::low_latency
