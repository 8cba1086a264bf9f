#include "expert_parallel/low_latency/host/options.hpp"

#include <fmt/format.h>

#include "expert_parallel/common/expert_map.hpp"
#include "fabric/agreement.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr uint32_t kHiddenMax = uint32_t{1} << 20;
constexpr uint64_t kSlotsMax = INT32_MAX;

/// Values that ranks exchange before they create an object.
struct Proposal {
  uint32_t experts, places_per_rank, hidden, topk, tokens_max, bf16_rows;
  uint32_t sms;          ///< this and the fields below may differ among ranks
  Capacity capacity;     ///< of its device
  uint32_t unreachable;  ///< first rank that it cannot reach, or kAllReached
  uint32_t paths;        ///< a LowLatencyPaths, the same on all ranks
};

Proposal proposal_of(const World& world, const LowLatencyOptions& options, const Paths& paths) {
  return {.experts = options.experts,
          .places_per_rank = options.places_per_rank,
          .hidden = options.hidden,
          .topk = options.topk,
          .tokens_max = options.tokens_max,
          .bf16_rows = options.bf16_rows,
          .sms = options.sms,
          .capacity = accelerator_of(world).capacity(),
          .unreachable = paths.first_unreachable(),
          .paths = static_cast<uint32_t>(options.paths)};
}

/// Collective. Returns [ranks][ranks] whether one reaches the other by put.
std::vector<std::vector<bool>> gather_puts(World& world, const Paths& paths) {
  std::vector<std::byte> mine(world.size());
  for (const uint32_t rank : paths.put_peers()) mine[rank] = std::byte{1};
  std::vector<std::vector<bool>> puts;
  for (const auto& theirs : world.all_gather(mine, "LowLatency: paths")) {
    puts.emplace_back(world.size());  // None of an absent rank.
    for (size_t rank = 0; rank < theirs.size(); ++rank)
      puts.back()[rank] = theirs[rank] != std::byte{0};
  }
  return puts;
}

void require_paths(const World& world, const std::vector<Proposal>& proposals) {
  for (const uint32_t rank : present_ranks(world)) {
    const uint32_t peer = proposals[rank].unreachable;
    if (peer == kAllReached) continue;
    if (static_cast<LowLatencyPaths>(proposals[rank].paths) == LowLatencyPaths::put)
      throw Unsupported(
          "LowLatency",
          fmt::format("paths 'put' need a network to every rank, and rank {} has none "
                      "to rank {}: ranks of one host have one if each is given a host_name of "
                      "its own (TOKENYARD_HOST_NAME)",
                      rank, peer));
    throw Unsupported(
        "LowLatency",
        fmt::format("rank {} cannot reach rank {}{}", rank, peer,
                    rank == world.rank() ? ": " + world.topology().peers[peer].why_not : ""));
  }
}

/// Throws unless the rank can dispatch on its default number of blocks.
void require_default_blocks(const Plan& plan, uint32_t rank) {
  require_sms(plan, plan.blocks_max, rank);
  const uint32_t most = blocks_there_are(plan.multiprocessors);
  if (plan.dispatch_blocks_min(Part::both) == 0)
    throw InvalidArgument(
        "tokens_max",
        fmt::format("so few that a block's {} bytes of shared memory hold their ids",
                    plan.shared_bytes),
        fmt::format("{}, for which a dispatch takes {}", plan.tokens_max,
                    plan.dispatch_shared_bytes(Part::both, most)),
        rank);
  require_shared_memory(plan, Part::both, plan.blocks_max, rank);
}

}  // namespace

void check_options(const LowLatencyOptions& options, uint32_t ranks) {
  require(ranks > 0 && ranks <= kRanksMax, "ranks", fmt::format("1 to {}", kRanksMax), ranks);
  if (options.places_per_rank == 0)
    require(options.experts >= ranks, "experts",
            fmt::format("at least one on each of {} ranks", ranks), options.experts);
  require(options.experts > 0, "experts", "at least 1", options.experts);
  require_places(options.experts, options.places_per_rank, ranks,
                 uint64_t{kLocalExpertsMax} * ranks);
  const uint64_t held_at_most = ExpertHomes::of(places_of(options, ranks), ranks).held_at_most();
  require(held_at_most <= kLocalExpertsMax, "experts",
          fmt::format("at most {} on {} ranks", kLocalExpertsMax * ranks, ranks), options.experts);
  require(options.hidden > 0 && options.hidden % 32 == 0 && options.hidden <= kHiddenMax, "hidden",
          fmt::format("a multiple of 32 from 32 to {}", kHiddenMax), options.hidden);
  require(options.topk > 0 && options.topk <= kTopkMax, "topk", fmt::format("1 to {}", kTopkMax),
          options.topk);
  require(options.topk <= options.experts, "topk",
          fmt::format("at most experts = {}", options.experts), options.topk);
  require(options.tokens_max > 0, "tokens_max", "at least 1", options.tokens_max);
  const uint64_t rows_a_token = held_at_most * ranks;
  require(options.tokens_max * rows_a_token <= kSlotsMax, "tokens_max",
          fmt::format("at most {} for {} experts on {} ranks", kSlotsMax / rows_a_token,
                      options.experts, ranks),
          options.tokens_max);
}

void require_sms(const Plan& plan, uint32_t sms, std::optional<uint32_t> rank) {
  const uint32_t most = blocks_there_are(plan.multiprocessors);
  if (sms < kBlocksMin || sms > most)
    throw InvalidArgument("sms", fmt::format("{} to {}, or 0", kBlocksMin, most),
                          std::to_string(sms), rank);
}

void require_shared_memory(const Plan& plan, Part part, uint32_t sms,
                           std::optional<uint32_t> rank) {
  const uint64_t bytes = plan.dispatch_shared_bytes(part, sms);
  if (bytes > plan.shared_bytes)
    throw InvalidArgument("sms",
                          fmt::format("at least {}, so that a block's {} bytes of shared memory "
                                      "hold its share of a dispatch",
                                      plan.dispatch_blocks_min(part), plan.shared_bytes),
                          fmt::format("{}, which takes {} bytes per block", sms, bytes), rank);
}

Paths agree_on_options(World& world, const LowLatencyOptions& options) {
  Paths paths(world, options.paths);
  const std::vector<Proposal> proposals =
      gather(world, proposal_of(world, options, paths), "LowLatency: options");
  require_paths(world, proposals);
  const std::vector<uint32_t> present = present_ranks(world);
  const uint32_t first = present.front();
  for (const uint32_t rank : present) {
    const Proposal &agreed = proposals[first], &other = proposals[rank];
    require_equal("experts", rank, first, agreed.experts, other.experts);
    require_equal("places_per_rank", rank, first, agreed.places_per_rank, other.places_per_rank);
    require_equal("hidden", rank, first, agreed.hidden, other.hidden);
    require_equal("topk", rank, first, agreed.topk, other.topk);
    require_equal("tokens_max", rank, first, agreed.tokens_max, other.tokens_max);
    require_equal("bf16_rows", rank, first, agreed.bf16_rows, other.bf16_rows);
    require_equal("paths", rank, first, agreed.paths, other.paths);
  }
  check_options(options, world.size());
  for (const uint32_t rank : present) {
    LowLatencyOptions theirs = options;
    theirs.sms = proposals[rank].sms;
    require_default_blocks(
        make_plan(theirs, world.size(), accelerator_of(world).kind(), proposals[rank].capacity),
        rank);
  }
  paths.learn(gather_puts(world, paths));
  return paths;
}

}  // namespace tokenyard::low_latency
