// Suite `low_latency_reuse`: a rank whose tokens are complete begins the next batch, whose weights
// replace the last batch's, while others still send sums of the last one. A rank that has sent a
// token's sums must not wait for its weights again. Senders of a rank that communicates with only
// some ranks read weights twice, so usually one rank is masked by all and makes no calls.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/low_latency/batches_in_turn.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

BatchesInTurn draw(SeedRun& run) {
  Random& random = run.random;
  BatchesInTurn drawn;
  LowLatencyCase& of = drawn.of;
  of.shape.ranks = run.option("ranks", random.between(3, 4));
  of.shape.experts =
      run.option("experts", 3 * of.shape.ranks - (random.chance(256) ? random.between(1, 2) : 0));
  of.shape.topk = run.option("topk", random.between(4, of.shape.experts - 1));
  of.shape.hidden = 32;
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank) {
    of.tokens.push_back(random.chance(768) ? 1 : 2);
    drawn.sms.push_back(random.between(2, 3));
  }
  run.option("tokens", fmt::format("{}", of.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  of.rows = LowLatencyRows::bf16;
  of.seed = static_cast<uint32_t>(random.next());
  if (random.chance(256)) {
    of.mistaken = run.option("mistaken", random.below(of.shape.ranks));
    of.picking.none = 0.125;
  }
  if (random.chance(896)) drawn.absent = run.option("absent", random.below(of.shape.ranks));
  const uint32_t batches = random.between(2, 6);
  for (uint32_t batch = 0; batch < batches; ++batch)
    drawn.early_weights.push_back(batch % 2 == 0 ? 0 : random.below(1 << of.shape.ranks));
  drawn.hooks.assign(batches, false);
  run.option("early_weights", fmt::format("{}", drawn.early_weights));
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

const bool registered = simulation::add_suite(
    {.name = "low_latency_reuse",
     .what = "weights of the next batch lie where those of the last did, while others still send",
     .run = [](SeedRun& run) { run_in_turn(run, draw(run)); },
     .reaches = {{"epochs wrap", 100}, {"epochs pass a half", 60}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
