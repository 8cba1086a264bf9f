// Suite `decoder`: a dense decoder whose stages hand on words, and which loads its cache ahead,
// under weak memory and odd schedules. Its logits must be those of the plain model, and the same
// bits whatever the schedule.
#include "megakernel/plain_decoder.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {
namespace {

using simulation::Fault;
using simulation::SeedRun;

struct Drawn {
  DecoderShape shape;
  uint32_t blocks, compute_warps, ring_units, in_flight, steps, seed;
};

Drawn draw(SeedRun& run) {
  simulation::Random& random = run.random;
  const uint32_t heads = run.option("kv_heads", random.between(1, 2));
  const uint32_t splits = run.option("splits", random.between(1, 2));
  const uint32_t group = run.option("group", random.between(1, 2));
  return {.shape = {.vocabulary = 12,
                    .hidden = run.option("hidden", 8 * splits * random.between(1, 2)),
                    .layers = run.option("layers", random.between(1, 2)),
                    .query_heads = heads * group,
                    .kv_heads = heads,
                    .head_dim = 16,
                    .inner = run.option("inner", 8 * random.between(1, 3)),
                    .page_tokens = run.option("page_tokens", random.between(1, 2)),
                    .positions_max = 4,
                    .epsilon = 1e-5f,
                    .rope_base = 10000},
          .blocks = heads * splits,
          .compute_warps = run.option("compute_warps", random.chance(256) ? 2u : 1u),
          .ring_units = run.option("ring_units", random.between(1, 3)),
          .in_flight = random.between(1, 2),
          .steps = run.option("steps", random.between(1, 3)),
          .seed = static_cast<uint32_t>(random.below(3))};
}

/// Fed the prompt, whatever the model thinks.
Vector last_logits(World& world, const Drawn& drawn, const Model& model,
                   const std::vector<uint32_t>& prompt) {
  TensorMemory memory(world);
  const DenseDecoder decoder(memory, drawn.shape, model.placed(memory),
                             {.blocks = drawn.blocks, .prompt = prompt});
  Megakernel kernel(world, decoder.graph(),
                    {.workers = drawn.blocks,
                     .compute_warps = drawn.compute_warps,
                     .unit_bytes = decoder.unit_bytes(),
                     .ring_units = drawn.ring_units,
                     .in_flight = drawn.in_flight});
  kernel.run(drawn.steps);
  Vector logits(drawn.shape.vocabulary);
  memory.read(logits.data(), decoder.logits, logits.size() * sizeof(float));
  return logits;
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const Model model(drawn.shape);
  std::vector<uint32_t> prompt(drawn.steps + 1);
  for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = (5 * i + drawn.seed) % 12;
  Plain plain(model);
  Vector expected;
  for (uint32_t step = 0; step < drawn.steps; ++step) expected = plain.logits(prompt[step]);
  const simulated::Options options{.ranks = 1, .arena_bytes = size_t{1} << 18};
  const simulated::Result result = simulated::run(run, options, [&](World& world) {
    const Vector logits = last_logits(world, drawn, model, prompt);
    for (size_t i = 0; i < logits.size(); ++i)
      if (!(std::abs(logits[i] - expected[i]) < 3e-2f))
        throw simulation::SuiteFailure(
            fmt::format("logit {} is {} instead of {}", i, logits[i], expected[i]));
  });
  result.require_clean({});
}

const bool registered = simulation::add_suite(
    {.name = "decoder",
     .what = "a dense decoder by words and prefetch, its logits under adversarial delivery",
     .run = run_suite,
     .explained = {},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::megakernel
