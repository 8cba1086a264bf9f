/// What a LowLatency object may be asked for, and that all ranks ask for the same.
#include <fmt/format.h>

#include "expert_parallel/low_latency/plan.hpp"
#include "expert_parallel/proposals.hpp"
#include "fabric/gather.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr uint32_t kHiddenMax = uint32_t{1} << 20;
constexpr uint64_t kSlotsMax = INT32_MAX;
constexpr uint32_t kBlocksMin = 2;  // One sends, one receives.

/// What a rank tells the others before it makes an object.
struct Proposal {
  uint32_t experts, hidden, topk, tokens_max, bf16_rows;
  uint32_t unreachable;  ///< the first rank that it cannot reach, or kAllReached
};

}  // namespace

void check_options(const LowLatencyOptions& options, uint32_t ranks) {
  require(ranks > 0 && ranks <= kRanksMax, "ranks", fmt::format("1 to {}", kRanksMax), ranks);
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
  const Proposal mine{options.experts,    options.hidden,    options.topk,
                      options.tokens_max, options.bf16_rows, first_unreachable(world)};
  const std::vector<Proposal> proposals = gather(world, mine, "LowLatency: options");
  std::vector<uint32_t> unreachable;
  for (const Proposal& proposal : proposals) unreachable.push_back(proposal.unreachable);
  require_reach(world, "LowLatency", unreachable);
  for (uint32_t rank = 1; rank < proposals.size(); ++rank) {
    const Proposal &first = proposals[0], &other = proposals[rank];
    require_equal("experts", rank, first.experts, other.experts);
    require_equal("hidden", rank, first.hidden, other.hidden);
    require_equal("topk", rank, first.topk, other.topk);
    require_equal("tokens_max", rank, first.tokens_max, other.tokens_max);
    require_equal("bf16_rows", rank, first.bf16_rows, other.bf16_rows);
  }
}

}  // namespace tokenyard::low_latency
