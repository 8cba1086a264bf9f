// Suite `decoder`: a dense decoder whose stages pass on words, and which loads its cache ahead,
// under weak memory and adversarial schedules: with one sequence or several, on one rank or
// several, which may be on several hosts, and one of which may stop midway. Its logits must equal
// those of the plain model for every sequence, on every rank for its part of the vocabulary.
#include <fmt/ranges.h>

#include <algorithm>

#include "decoder/plain_decoder.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using simulation::Fault;
using simulation::SeedRun;

struct Drawn {
  DecoderShape shape;
  Model::Extras extras;
  uint32_t ranks, sequences, blocks, compute_warps, ring_units, in_flight, steps, seed;
  std::vector<uint32_t> host_of;  ///< [ranks]

  bool spans_hosts() const { return host_of.back() > 0; }
};

/// Draws the host of each rank: mostly one for all.
std::vector<uint32_t> draw_hosts(SeedRun& run, uint32_t ranks) {
  std::vector<uint32_t> host_of(1, 0);
  const bool several = ranks > 1 && run.random.chance(256);
  while (host_of.size() < ranks)
    host_of.push_back(host_of.back() + (several && run.random.chance(512) ? 1 : 0));
  if (several && host_of.back() == 0) host_of.back() = 1;
  run.option("host_of", fmt::format("{}", host_of));
  return host_of;
}

Drawn draw(SeedRun& run) {
  simulation::Random& random = run.random;
  const uint32_t ranks = run.option("ranks", random.chance(512)   ? 1u
                                             : random.chance(256) ? 4u
                                                                  : 2u);
  const uint32_t heads = run.option("kv_heads of a rank", ranks == 1 ? random.between(1, 2) : 1u);
  const uint32_t side_by_side = random.chance(256) ? random.chance(256) ? 8u : 4u : 2u;
  const uint32_t sequences =
      run.option("sequences", random.chance(ranks > 1 ? 768 : 512) ? 1u : side_by_side);
  // More blocks than rows of a stage: of QKV, of gate/up, of the down projection if a rank has two
  // heads, and of the head.
  const bool crowded = run.option("crowded", random.chance(384));
  const uint32_t few = sequences * random.between(1, sequences == 1 ? 2 : 1);
  const uint32_t many = random.chance(512) ? 8u : std::max(sequences, 4u);
  const uint32_t splits = run.option("splits", crowded ? many : few);
  const uint32_t group = run.option("group", random.between(1, 2));
  // Sometimes more than one warp's slice of a vector.
  const bool wide = run.option("wide", random.chance(crowded ? 192 : 64));
  const uint32_t eights = wide ? kSliceColumns / (8 * splits) + 1 : random.between(1, 2);
  return {.shape = {.vocabulary = 12,
                    .hidden = run.option("hidden", 8 * splits * eights),
                    .layers = run.option("layers", random.between(1, 2)),
                    .query_heads = ranks * heads * group,
                    .kv_heads = ranks * heads,
                    .head_dim = 16,
                    .inner = ranks * run.option("inner of a rank",
                                                8 * random.between(1, ranks == 1 ? 3 : 2)),
                    .page_tokens = run.option("page_tokens", random.between(1, 2)),
                    .positions_max = 4,
                    .epsilon = 1e-5f,
                    .rope_base = 10000},
          .extras = {.biases = run.option("biases", random.chance(512)),
                     .norms = run.option("norms", random.chance(512)),
                     .windows = {run.option("window", random.between(1, 4))}},
          .ranks = ranks,
          .sequences = sequences,
          .blocks = heads * splits,
          .compute_warps = run.option("compute_warps", wide || random.chance(256) ? 2u : 1u),
          .ring_units = run.option("ring_units",
                                   random.between(sequences == 1 ? 1 : 2, sequences == 1 ? 3 : 4)),
          .in_flight = random.between(1, 2),
          .steps = run.option("steps", random.between(1, 3)),
          .seed = static_cast<uint32_t>(random.below(3)),
          .host_of = draw_hosts(run, ranks)};
}

/// Returns the logits of the last step, in which all tokens come from the prompt.
Vector last_logits(World& world, const Drawn& drawn, const Model& model,
                   const std::vector<std::vector<uint32_t>>& prompts) {
  TensorMemory memory(world);
  const Graph::Place place{.rank = world.rank(), .ranks = world.size()};
  const DenseDecoder decoder(memory, drawn.shape, model.placed(memory, place),
                             {.blocks = drawn.blocks, .prompts = prompts, .place = place});
  Megakernel kernel(world, decoder.graph(),
                    {.workers = drawn.blocks,
                     .compute_warps = drawn.compute_warps,
                     .unit_bytes = decoder.unit_bytes(),
                     .ring_units = drawn.ring_units,
                     .in_flight = drawn.in_flight});
  kernel.run(drawn.steps);
  Vector logits(drawn.sequences * drawn.shape.vocabulary / world.size());
  memory.read(TensorView::of(std::span(logits)), {decoder.logits, {logits.size()}});
  return logits;
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const Model model(drawn.shape, drawn.extras);
  std::vector<std::vector<uint32_t>> prompts(drawn.sequences,
                                             std::vector<uint32_t>(drawn.steps + 1));
  std::vector<Vector> expected(drawn.sequences);
  for (uint32_t s = 0; s < drawn.sequences; ++s) {
    for (uint32_t i = 0; i <= drawn.steps; ++i) prompts[s][i] = (5 * i + 3 * s + drawn.seed) % 12;
    Plain plain(model);
    for (uint32_t step = 0; step < drawn.steps; ++step)
      expected[s] = plain.logits(prompts[s][step]);
  }
  simulated::Options options{.ranks = drawn.ranks, .arena_bytes = size_t{1} << 18};
  if (drawn.spans_hosts()) {
    options.host_of = drawn.host_of;
    options.arena_bytes = size_t{1} << 21;
    options.card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000)};
    options.queues_per_peer = 1;
    run.reach("sums between hosts");
  }
  if (drawn.ranks > 1 && run.random.chance(256)) {
    options.stop = simulation::RankStop{
        .rank = run.option("stops", run.random.below(drawn.ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 15))),
        .fate = static_cast<simulation::InFlight>(run.random.below(3))};
    // Other fates also lose stores that an applied signal of the network has released.
    if (drawn.spans_hosts()) options.stop->fate = simulation::InFlight::land;
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result = simulated::run(run, options, [&](World& world) {
    const Vector logits = last_logits(world, drawn, model, prompts);
    const size_t mine = drawn.shape.vocabulary / world.size();
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t sequence = i / mine, token = world.rank() * mine + i % mine;
      const float right = expected[sequence][token];
      if (!(std::abs(logits[i] - right) < 3e-2f))
        throw simulation::SuiteFailure(fmt::format("logit {} of sequence {} is {} instead of {}",
                                                   token, sequence, logits[i], right));
    }
  });
  result.require_clean_after(options.stop);
}

const bool registered = simulation::add_suite(
    {.name = "decoder",
     .what =
         "logits of a dense decoder with carried words and prefetch, under adversarial delivery",
     .run = run_suite,
     .explained = {},
     .reaches = {{"sums between hosts", 100}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::megakernel
