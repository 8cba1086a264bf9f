#include "expert_parallel/common/expert_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "device/await_stream.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard {

namespace {

void require_experts(std::span<const int32_t> expert_at, uint32_t experts) {
  for (size_t place = 0; place < expert_at.size(); ++place)
    if (expert_at[place] < -1 || expert_at[place] >= static_cast<int64_t>(experts))
      throw InvalidArgument("expert_at", fmt::format("experts 0 to {}, or -1", experts - 1),
                            fmt::format("{} at place {}", expert_at[place], place));
}

std::vector<uint32_t> experts_without_place(std::span<const int32_t> expert_at, uint32_t experts) {
  std::vector<bool> placed(experts);
  for (const int32_t expert : expert_at)
    if (expert >= 0) placed[static_cast<size_t>(expert)] = true;
  std::vector<uint32_t> without;
  for (uint32_t expert = 0; expert < experts; ++expert)
    if (!placed[expert]) without.push_back(expert);
  return without;
}

std::vector<bool> filled_slots(const World& world) {
  std::vector<bool> filled(world.size());
  for (uint32_t rank = 0; rank < world.size(); ++rank) filled[rank] = is_present(world, rank);
  return filled;
}

}  // namespace

std::vector<int32_t> spread_lost_experts(std::span<const int32_t> expert_at,
                                         const std::vector<bool>& living) {
  require_experts(expert_at, uint32_t{INT32_MAX} + 1);
  const auto ranks = static_cast<uint32_t>(living.size());
  if (ranks == 0) throw InvalidArgument("living", "at least one rank", "none");
  const auto places = ExpertPartition::of(static_cast<uint32_t>(expert_at.size()), ranks);
  std::vector<int32_t> spread(expert_at.begin(), expert_at.end());
  std::vector<uint32_t> held(ranks);
  std::vector<std::vector<uint32_t>> empty(ranks);  // Empty places, the last ones first.
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint32_t first = places.first_of(rank);
    for (uint32_t place = first + places.held_by(rank); place-- > first;) {
      if (!living[rank]) {
        spread[place] = -1;
      } else if (spread[place] < 0) {
        empty[rank].push_back(place);
      } else {
        ++held[rank];
      }
    }
  }
  std::set<int32_t> lost(expert_at.begin(), expert_at.end());
  lost.erase(-1);
  for (const int32_t expert : spread) lost.erase(expert);
  for (const int32_t expert : lost) {
    uint32_t to = ranks;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      if (!empty[rank].empty() && (to == ranks || held[rank] < held[to])) to = rank;
    if (to == ranks) break;
    spread[empty[to].back()] = expert;
    empty[to].pop_back();
    ++held[to];
  }
  return spread;
}

void require_places(uint32_t experts, uint32_t places_per_rank, uint32_t ranks, uint64_t most) {
  if (places_per_rank == 0) return;
  const uint64_t places = uint64_t{places_per_rank} * ranks;
  if (places < experts || places > most)
    throw InvalidArgument("places_per_rank",
                          fmt::format("{} to {} for {} experts on {} ranks, or 0",
                                      (experts + ranks - 1) / ranks, most / ranks, experts, ranks),
                          std::to_string(places_per_rank));
}

std::vector<int32_t> plain_expert_map(uint32_t experts, uint32_t places, uint32_t ranks) {
  const auto of_experts = ExpertPartition::of(experts, ranks);
  const auto of_places = ExpertPartition::of(places, ranks);
  std::vector<int32_t> expert_at(places, -1);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    for (uint32_t i = 0; i < of_experts.held_by(rank); ++i)
      expert_at[of_places.first_of(rank) + i] = static_cast<int32_t>(of_experts.first_of(rank) + i);
  return expert_at;
}

ExpertMap::ExpertMap(World& world, uint32_t experts, uint32_t places)
    : world_(world),
      accelerator_(accelerator_of(world)),
      experts_(experts),
      places_(places),
      partition_(ExpertPartition::of(places, world.size())),
      given_(plain_expert_map(experts, places, world.size())),
      living_(filled_slots(world)),
      table_(accelerator_, table_bytes(experts, places), DeviceMemory::Kind::device),
      counters_(accelerator_, sizeof(Counters), DeviceMemory::Kind::device),
      shown_(accelerator_, sizeof(uint64_t), DeviceMemory::Kind::shared) {
  take_effect();
}

void ExpertMap::require_agreed(std::span<const int32_t> expert_at, const std::string& what) const {
  const auto everybody = world_.all_gather(std::as_bytes(expert_at), what);
  // All ranks compare with the first that lives, so all name the same ranks.
  const auto first =
      static_cast<size_t>(std::find(living_.begin(), living_.end(), true) - living_.begin());
  for (uint32_t rank = 0; rank < everybody.size(); ++rank)
    if (living_[rank] && everybody[rank] != everybody[first])
      throw InvalidArgument("expert_at", fmt::format("the same map as on rank {}", first),
                            "another map", rank);
  if (!expert_at.empty() && expert_at.size() != places_)
    throw InvalidArgument("expert_at", fmt::format("{} places, or none", places_),
                          std::to_string(expert_at.size()));
  require_experts(expert_at, experts_);
}

void ExpertMap::set(std::span<const int32_t> expert_at) {
  if (expert_at.empty())
    given_ = plain_expert_map(experts_, places_, world_.size());
  else
    given_.assign(expert_at.begin(), expert_at.end());
  take_effect();
}

void ExpertMap::set_living(const std::vector<bool>& living) {
  living_ = living;
  take_effect();
}

std::vector<int32_t> ExpertMap::carried_to(uint32_t places, uint32_t ranks) const {
  if (given_ == plain_expert_map(experts_, places_, world_.size())) return {};
  std::vector<int32_t> map = given_;
  if (ranks == world_.size()) return map;
  // With places_per_rank, new ranks have empty places. Without, all experts have moved.
  if (uint64_t{places} * world_.size() != uint64_t{places_} * ranks || places == places_) return {};
  map.resize(places, -1);
  return map;
}

void ExpertMap::take_effect() {
  in_effect_ = spread_lost_experts(given_, living_);
  std::vector<int32_t> numbers(places_);
  std::iota(numbers.begin(), numbers.end(), 0);
  moves_ = in_effect_ != numbers;
  std::vector<std::vector<uint32_t>> of_expert(experts_);
  for (uint32_t place = 0; place < places_; ++place)
    if (in_effect_[place] >= 0) of_expert[static_cast<size_t>(in_effect_[place])].push_back(place);
  std::vector<uint32_t> words{0};
  for (const auto& places : of_expert)
    words.push_back(words.back() + static_cast<uint32_t>(places.size()));
  for (const auto& places : of_expert) words.insert(words.end(), places.begin(), places.end());
  accelerator_.copy(table_.as<void>(), words.data(), words.size() * sizeof(uint32_t), Stream{});
  await_stream(accelerator_, world_.rank(), Stream{}, 2 * world_.timeout(),
               "expert map: the table of places");
}

std::vector<int32_t> ExpertMap::held_by(uint32_t rank) const {
  const auto first = in_effect_.begin() + partition_.first_of(rank);
  return {first, first + partition_.held_by(rank)};
}

std::vector<uint32_t> ExpertMap::lost() const {
  return experts_without_place(in_effect_, experts_);
}

PlacementTable ExpertMap::table() const {
  auto* const words = table_.as<uint32_t>();
  return {.first = words,
          .places = words + experts_ + 1,
          .experts = experts_,
          .places_there_are = places_,
          .partition = partition_};
}

LostChoices ExpertMap::lost_choices() const {
  auto* const counters = counters_.as<Counters>();
  return {.total = &counters->total, .arrived = &counters->arrived, .shown = shown_.as<uint64_t>()};
}

uint64_t ExpertMap::lost_choices_total() const {
  return std::atomic_ref(*shown_.as<uint64_t>()).load(std::memory_order_relaxed);
}

int64_t ExpertMap::given_id(int64_t id) const {
  if (moves_ && id >= 0 && id < places_) return in_effect_[static_cast<size_t>(id)];
  return not_misplaced(id, experts_, places_);
}

}  // namespace tokenyard
