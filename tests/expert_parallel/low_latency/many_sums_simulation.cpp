// Suite `low_latency_many_sums`: tokens whose sums come from more ranks than a warp holds in hand
// at once, several of them per block, over enough batches that places are used again. A reader
// empties its places, in hand or not: a place that is not emptied is taken for the sum of the batch
// after the next.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/low_latency/batches_in_turn.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

/// Returns the most sums that a token of any rank gets from other ranks.
uint32_t most_sums(const LowLatencyCase& of) {
  uint32_t most = 0;
  const std::vector<Tokens> all = of.draw();
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank)
    for (uint32_t token = 0; token < all[rank].count; ++token) {
      uint32_t sums = 0;
      for (uint32_t there = 0; there < of.shape.ranks; ++there)
        if (there != rank && goes_to(of.shape, all[rank], token, there)) ++sums;
      most = std::max(most, sums);
    }
  return most;
}

BatchesInTurn draw(SeedRun& run) {
  Random& random = run.random;
  BatchesInTurn drawn;
  LowLatencyCase& of = drawn.of;
  of.shape.ranks = run.option("ranks", random.between(5, 7));
  of.shape.experts = run.option("experts", of.shape.ranks * random.between(1, 2));
  of.shape.topk = run.option("topk", random.between(5, std::min(of.shape.experts, 6u)));
  // A warp with several spans empties all after the vote; one with a span, some while it waits.
  of.shape.hidden = run.option("hidden", 32 * (random.chance(96) ? random.between(20, 40) : 1));
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank) {
    of.tokens.push_back(random.between(1, 3));
    drawn.sms.push_back(2);  // One block sends and one receives.
  }
  run.option("tokens", fmt::format("{}", of.tokens));
  of.rows = LowLatencyRows::bf16;
  of.logfmt = run.option("logfmt", random.chance(192));
  of.picking.none = run.option("none", random.below(2) * 0.125);
  of.seed = static_cast<uint32_t>(random.next());
  if (random.chance(192)) drawn.absent = run.option("absent", random.below(of.shape.ranks));
  const uint32_t batches = random.between(3, 4);
  for (uint32_t batch = 0; batch < batches; ++batch) {
    drawn.early_weights.push_back(random.below(1 << of.shape.ranks));
    drawn.hooks.push_back(random.chance(256));
  }
  run.option("early_weights", fmt::format("{}", drawn.early_weights));
  run.option("hooks", fmt::format("{}", drawn.hooks));
  drawn.epoch_before = draw_epoch_before(run);
  if (most_sums(of) >= 4) run.reach("four sums of other ranks");
  if (most_sums(of) >= 6) run.reach("six sums of other ranks");
  return drawn;
}

const bool registered = simulation::add_suite(
    {.name = "low_latency_many_sums",
     .what = "tokens with sums from four ranks and more, several of them per block",
     .run = [](SeedRun& run) { run_in_turn(run, draw(run)); },
     .reaches = {{"four sums of other ranks", 20},
                 {"six sums of other ranks", 200},
                 {"epochs wrap", 100},
                 {"epochs pass a half", 60}},
     .seeds = 1000});

}  // namespace
}  // namespace tokenyard::test
