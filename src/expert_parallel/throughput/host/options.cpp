#include "expert_parallel/throughput/host/options.hpp"
#include "fabric/world_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/accelerator.hpp"
#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/throughput/kernels/control.hpp"
#include "fabric/agreement.hpp"
#include "fabric/gather.hpp"
#include "fabric/host_map.hpp"

namespace tokenyard {

namespace {

// Each choice is compared with all others of its token: 32,640 comparisons at this limit.
constexpr uint32_t kTopkMax = 256;
constexpr uint32_t kExpertsMax = uint32_t{1} << 26;
constexpr uint32_t kTokensMax = uint32_t{1} << 29;  // A refused token shares a word with its
                                                    // reason.
constexpr uint32_t kHiddenMax = uint32_t{1} << 24;
constexpr uint64_t kRowsMax = INT32_MAX;
constexpr uint32_t kRingRowsMax = 1 << 16;

/// Values that ranks exchange before they create an object.
struct Proposal {
  ExpertParallelOptions options;
  uint32_t multiprocessors;  ///< of its device
  uint32_t unreachable;      ///< first rank that it cannot reach, or kAllReached
};

/// Returns the first present rank of this host that is not within load/store reach, or of another
/// one that shares a link with this rank and is reached in no way; else kAllReached.
uint32_t first_out_of_reach(const World& world) {
  const Topology& topology = world.topology();
  const HostMap map = host_map_of(world);
  for (const uint32_t rank : present_ranks(world)) {
    const Reach reach = topology.peers[rank].reach;
    const bool near = topology.host_of[rank] == topology.host_of[world.rank()];
    if (near ? reach == Reach::none || reach == Reach::put_signal
             : reach == Reach::none && map.is_linked(world.rank(), rank))
      return rank;
  }
  return kAllReached;
}

}  // namespace

void check_options(const ExpertParallelOptions& options, uint32_t ranks) {
  require(options.experts > 0 && options.experts <= kExpertsMax, "experts",
          fmt::format("1 to {}", kExpertsMax), options.experts);
  require_places(options.experts, options.places_per_rank, ranks, kExpertsMax);
  require(options.hidden > 0 && options.hidden % 8 == 0, "hidden", "a multiple of 8 above 0",
          options.hidden);
  require(options.hidden <= kHiddenMax, "hidden", fmt::format("at most {}", kHiddenMax),
          options.hidden);
  require(options.topk > 0 && options.topk <= kTopkMax, "topk", fmt::format("1 to {}", kTopkMax),
          options.topk);
  require(options.topk <= options.experts, "topk",
          fmt::format("at most experts = {}", options.experts), options.topk);
  require(options.tokens_max > 0 && options.tokens_max <= kTokensMax, "tokens_max",
          fmt::format("1 to {}", kTokensMax), options.tokens_max);
  require(options.tuning.ring_rows <= kRingRowsMax, "tuning.ring_rows",
          fmt::format("at most {}", kRingRowsMax), options.tuning.ring_rows);
  require(options.tuning.chunk_rows <= kRingRowsMax, "tuning.chunk_rows",
          fmt::format("at most {}", kRingRowsMax), options.tuning.chunk_rows);
  require(uint64_t{options.tokens_max} * ranks <= kRowsMax, "tokens_max",
          fmt::format("at most {} over all {} ranks", kRowsMax, ranks), options.tokens_max);
}

void agree_on_options(World& world, const ExpertParallelOptions& options) {
  const Proposal mine{options, accelerator_of(world).capacity().multiprocessors,
                      first_out_of_reach(world)};
  const std::vector<Proposal> proposals = gather(world, mine, "ExpertParallel: options");
  require_reach(world, "ExpertParallel", proposals);
  const std::vector<uint32_t> present = present_ranks(world);
  const uint32_t first = present.front();
  for (const uint32_t rank : present) {
    const ExpertParallelOptions& agreed = proposals[first].options;
    const ExpertParallelOptions& other = proposals[rank].options;
    require_equal("experts", rank, first, agreed.experts, other.experts);
    require_equal("places_per_rank", rank, first, agreed.places_per_rank, other.places_per_rank);
    require_equal("hidden", rank, first, agreed.hidden, other.hidden);
    require_equal("topk", rank, first, agreed.topk, other.topk);
    require_equal("tokens_max", rank, first, agreed.tokens_max, other.tokens_max);
    require_equal("tuning.ring_rows", rank, first, agreed.tuning.ring_rows, other.tuning.ring_rows);
    require_equal("tuning.chunk_rows", rank, first, agreed.tuning.chunk_rows,
                  other.tuning.chunk_rows);
    require_equal("fp32_partials", rank, first, uint32_t{agreed.fp32_partials},
                  uint32_t{other.fp32_partials});
  }
  // The number of multiprocessors may differ among ranks.
  for (const uint32_t rank : present) {
    const uint32_t most =
        std::min(proposals[rank].multiprocessors, throughput::CallWord::kBlocksMax);
    const ExpertParallelOptions& asked = proposals[rank].options;
    for (const auto& [name, sms] : {std::pair{"sms", asked.sms}, {"sms_max", asked.sms_max}})
      if (sms > most)
        throw InvalidArgument(name, fmt::format("at most {} multiprocessors, or 0", most),
                              std::to_string(sms), rank);
  }
}

}  // namespace tokenyard
