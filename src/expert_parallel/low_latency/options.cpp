/// What a LowLatency object may be asked for, and that all ranks ask for the same.
#include <fmt/format.h>

#include <cstring>

#include "expert_parallel/low_latency/plan.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr uint32_t kHiddenMax = uint32_t{1} << 20;
constexpr uint64_t kSlotsMax = INT32_MAX;
constexpr uint32_t kBlocksMin = 2;  // One sends, one receives.

void require(bool holds, const char* argument, std::string expected, uint64_t seen) {
  if (!holds) throw InvalidArgument(argument, std::move(expected), std::to_string(seen));
}

/// What a rank tells the others before it makes an object.
struct Proposal {
  uint32_t experts, hidden, topk, tokens_max, bf16_rows;
  uint32_t unreachable;  ///< the first rank that it cannot reach by loads and stores, or none
  static constexpr uint32_t kNone = 0xffffffff;
};

uint32_t first_unreachable(const World& world) {
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    const Reach reach = world.topology().peers[rank].reach;
    if (reach != Reach::self && reach != Reach::load_store) return rank;
  }
  return Proposal::kNone;
}

std::vector<Proposal> gather_proposals(World& world, const LowLatencyOptions& options) {
  const Proposal mine{options.experts,    options.hidden,    options.topk,
                      options.tokens_max, options.bf16_rows, first_unreachable(world)};
  const auto everybody =
      world.all_gather(std::as_bytes(std::span(&mine, 1)), "LowLatency: options");
  std::vector<Proposal> proposals(everybody.size());
  for (size_t rank = 0; rank < everybody.size(); ++rank) {
    if (everybody[rank].size() != sizeof(Proposal))
      throw InternalError(fmt::format("rank {} proposed {} bytes of options instead of {}", rank,
                                      everybody[rank].size(), sizeof(Proposal)));
    std::memcpy(&proposals[rank], everybody[rank].data(), sizeof(Proposal));
  }
  return proposals;
}

}  // namespace

void check_options(const LowLatencyOptions& options, uint32_t ranks) {
  require(ranks <= kRanksMax, "ranks", fmt::format("at most {}", kRanksMax), ranks);
  require(options.experts > 0 && options.experts % ranks == 0, "experts",
          fmt::format("a multiple of {} ranks", ranks), options.experts);
  require(options.experts / ranks <= kLocalExpertsMax, "experts",
          fmt::format("at most {} a rank", kLocalExpertsMax), options.experts);
  require(options.hidden > 0 && options.hidden % 32 == 0 && options.hidden <= kHiddenMax, "hidden",
          fmt::format("a multiple of 32 from 32 to {}", kHiddenMax), options.hidden);
  require(options.topk > 0 && options.topk <= kTopkMax, "topk", fmt::format("1 to {}", kTopkMax),
          options.topk);
  require(options.tokens_max > 0, "tokens_max", "at least 1", options.tokens_max);
  require(uint64_t{options.tokens_max} * options.experts <= kSlotsMax, "tokens_max",
          fmt::format("at most {} rows in all", kSlotsMax), options.tokens_max);
  require(options.sms == 0 || options.sms >= kBlocksMin, "sms",
          fmt::format("at least {}, or 0", kBlocksMin), options.sms);
}

void agree_on_options(World& world, const LowLatencyOptions& options) {
  const std::vector<Proposal> proposals = gather_proposals(world, options);
  for (uint32_t rank = 0; rank < proposals.size(); ++rank) {
    const uint32_t unreachable = proposals[rank].unreachable;
    if (unreachable == Proposal::kNone) continue;
    throw Unsupported(
        "LowLatency",
        fmt::format(
            "rank {} cannot load from and store to rank {}{}", rank, unreachable,
            rank == world.rank() ? ": " + world.topology().peers[unreachable].why_not : ""));
  }
  for (uint32_t rank = 1; rank < proposals.size(); ++rank) {
    const auto require_equal = [&](const char* argument, uint32_t Proposal::*field) {
      const uint32_t first = proposals[0].*field, seen = proposals[rank].*field;
      if (first != seen)
        throw InvalidArgument(argument, fmt::format("{} as on rank 0", first), std::to_string(seen),
                              rank);
    };
    require_equal("experts", &Proposal::experts);
    require_equal("hidden", &Proposal::hidden);
    require_equal("topk", &Proposal::topk);
    require_equal("tokens_max", &Proposal::tokens_max);
    require_equal("bf16_rows", &Proposal::bf16_rows);
  }
}

}  // namespace tokenyard::low_latency
