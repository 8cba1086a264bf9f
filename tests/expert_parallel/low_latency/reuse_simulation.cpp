// Suite `low_latency_reuse`: a rank whose tokens are complete begins the next batch, whose weights
// replace the last batch's, while others still send sums of the last one. A rank that has sent a
// token's sums must not wait for its weights again. Senders of a rank that communicates with only
// some ranks read weights twice, so usually one rank is masked by all and makes no calls.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

struct Drawn {
  LowLatencyCase of;
  std::vector<uint32_t> sms;  ///< [ranks]
  std::optional<uint32_t> absent;
  std::vector<uint32_t> early_weights;  ///< [batches], each as in LowLatencyCase
  uint32_t epoch_before = 0;
};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
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
  run.option("early_weights", fmt::format("{}", drawn.early_weights));
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

/// The program of one rank.
void exchange_on(World& world, const Drawn& drawn) {
  LowLatency exchange(world, drawn.of.options());
  if (drawn.absent == world.rank()) return;
  if (drawn.absent) exchange.update_mask(*drawn.absent, true);
  Survivor survivor(exchange, drawn.absent);
  LowLatencyCase of = drawn.of;
  of.sms = drawn.sms[world.rank()];
  for (const uint32_t early_weights : drawn.early_weights) {
    of.early_weights = early_weights;
    of.seed += 1;
    SurvivorBatch batch(survivor, of, false);
    batch.dispatch(false);
    batch.combine(false);
  }
  survivor.require_only_the_stopped_masked();
}

constexpr size_t kArenaBytes = size_t{2} << 20;
/// Far above the slowest delivery that a seed draws: no rank is late.
constexpr std::chrono::milliseconds kTimeout{100};

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const simulated::Options options{.ranks = drawn.of.shape.ranks,
                                   .arena_bytes = kArenaBytes,
                                   .timeout = kTimeout,
                                   .epoch_before = drawn.epoch_before};
  simulated::run(run, options, [&](World& world) { exchange_on(world, drawn); }).require_clean();
}

const bool registered = simulation::add_suite(
    {.name = "low_latency_reuse",
     .what = "weights of the next batch lie where those of the last did, while others still send",
     .run = run_suite,
     .reaches = {{"epochs wrap", 100}, {"epochs pass a half", 60}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
