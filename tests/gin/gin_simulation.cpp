/// Suite `gin`: the contract of networks over the card for NCCL's GIN, and over a stand-in for GIN,
/// under the memory model.
#include "fabric/network_seed.hpp"
#include "gin/stand_in.hpp"

namespace tokenyard::gin::testing {

TOKENYARD_DEFINE_HOST_KERNEL(stand_in_card_kernel, stand_in_card, StandInParams, NoShared,
                             CardParams::kWarps * 32)

namespace {

using simulation::SeedRun;

MakeNetwork over_kept_card(const SimulatedCard& card) {
  GinOptions options;
  options.queues_per_peer = card.queues_per_peer;
  // Longer than the stalls of the wire.
  options.timeout = std::chrono::hours(1);
  return over_stand_in(card, {}, options);
}

const bool registered = simulation::add_suite(
    {.name = "gin",
     .what = "the card that hands requests to NCCL's GIN, over a stand-in for GIN",
     .run = [](SeedRun& run) { tokenyard::testing::network_seed(run, false, over_kept_card); },
     .seeds = 1000});

}  // namespace
}  // namespace tokenyard::gin::testing
