#include "expert_parallel/throughput/host/expert_map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tokenyard::throughput {

namespace {

/// Returns the places of each expert. Throws unless every expert has one.
std::vector<std::vector<uint32_t>> places_of(std::span<const int32_t> expert_at) {
  int32_t experts = 0;
  for (const int32_t expert : expert_at) experts = std::max(experts, expert + 1);
  std::vector<std::vector<uint32_t>> places(static_cast<size_t>(experts));
  for (uint32_t place = 0; place < expert_at.size(); ++place)
    if (expert_at[place] >= 0) places[static_cast<size_t>(expert_at[place])].push_back(place);
  for (size_t expert = 0; expert < places.size(); ++expert)
    if (places[expert].empty())
      throw InvalidArgument("expert_at", "a place for every expert",
                            fmt::format("none for expert {} of {}", expert, places.size()));
  return places;
}

}  // namespace

void ExpertMap::set(std::span<const int32_t> expert_at) {
  const Setup& setup = context_.setup;
  const auto everybody = setup.world.all_gather(std::as_bytes(expert_at), "ExpertParallel: places");
  for (uint32_t rank = 1; rank < everybody.size(); ++rank)
    if (everybody[rank] != everybody[0])
      throw InvalidArgument("expert_at", "the same map as on rank 0", "another map", rank);
  if (!expert_at.empty() && expert_at.size() != setup.options.experts)
    throw InvalidArgument("expert_at", fmt::format("{} places, or none", setup.options.experts),
                          std::to_string(expert_at.size()));
  const std::vector<std::vector<uint32_t>> places = places_of(expert_at);
  if (!expert_at.empty() && places.size() < setup.options.topk)
    throw InvalidArgument("expert_at",
                          fmt::format("at least topk = {} experts", setup.options.topk),
                          std::to_string(places.size()));
  setup.await_stream(context_.last_stream.get(), "the end of the call before its experts move");
  words_.reset();
  table_ = {};
  expert_at_.assign(expert_at.begin(), expert_at.end());
  if (expert_at.empty()) return;
  std::vector<uint32_t> words{0};
  for (const auto& of_expert : places)
    words.push_back(words.back() + static_cast<uint32_t>(of_expert.size()));
  for (const auto& of_expert : places)
    words.insert(words.end(), of_expert.begin(), of_expert.end());
  auto* const table =
      words_.emplace(setup.accelerator, words.size() * 4, DeviceMemory::Kind::device)
          .as<uint32_t>();
  setup.accelerator.copy(table, words.data(), words.size() * 4, Stream{});
  setup.await_stream(Stream{}, "the table of places");
  table_ = {.first = table,
            .places = table + places.size() + 1,
            .experts = static_cast<uint32_t>(places.size()),
            .places_there_are = setup.options.experts};
}

DispatchArguments ExpertMap::placed(const DispatchArguments& input, const Plan& plan, Stream stream,
                                    Route::State& route, std::shared_ptr<CallMemory>& made) const {
  if (table_.experts == 0 || input.tokens == 0) return input;
  const Setup& setup = context_.setup;
  made = context_.arena.scratch(size_t{input.tokens} * setup.options.topk * sizeof(int64_t), stream,
                                route);
  auto* const ids = reinterpret_cast<int64_t*>(made->block().data());
  launch(setup.accelerator, place_choices_kernel,
         {.blocks = plan.blocks, .warps = plan.warps, .cooperative = false, .local = true}, stream,
         {.rank = setup.world.rank(),
          .tokens = input.tokens,
          .topk = setup.options.topk,
          .topk_idx = input.topk_idx,
          .idx_is_int64 = input.idx_is_int64,
          .table = table_,
          .placed = ids});
  DispatchArguments at_places = input;
  at_places.topk_idx = ids;
  at_places.idx_is_int64 = true;
  return at_places;
}

int64_t ExpertMap::given_id(int64_t id) const {
  if (table_.experts == 0 || id < 0) return id;
  const uint32_t places = context_.setup.options.experts;
  return id >= places ? id - places : expert_at_[static_cast<size_t>(id)];
}

}  // namespace tokenyard::throughput
