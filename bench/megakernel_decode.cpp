// Measures a decode step of a Llama-3.2-1B-shaped model at batch 1: in the megakernel, with its
// checks and its watchdog; with the same task bodies as separate kernels in a CUDA graph with
// programmatic dependent launch; in the megakernels of several ranks that share the model; and with
// batches of several sequences. All start from the same cache, each sequence from its own token,
// and must produce the same tokens as each sequence alone.
//
//   ./run bench megakernel_decode                          # on a GPU
//   ./run bench megakernel_decode --ranks 2,4              # also shared by 2 and by 4 ranks
//   ./run bench megakernel_decode --sequences 2,4,8        # also batches of 2, 4 and 8 sequences
//   ./run bench megakernel_decode --ranks 2 --sequences 4  # each, and both
//   ./run bench megakernel_decode --device host --smoke    # a smoke test
//
// The floor is the time to read the weights and the cache once at 4.67 TB/s, the rate of plain
// streaming reads on an H200.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>

#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/megakernel_decode/model.hpp"
#include "bench/megakernel_decode/separate_stages.hpp"
#include "device/accelerator.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {
namespace {

namespace mk = tokenyard::megakernel;

struct Settings {
  std::string device = "cuda", output;
  uint32_t context = 500, tokens = 24, runs = 7;
  uint32_t ring_units = 0, in_flight = 2;
  bool trace = false;
  std::vector<uint32_t> ranks;      ///< numbers of ranks that share the model, besides 1
  std::vector<uint32_t> sequences;  ///< batch sizes, besides 1
};
constexpr double kStreamedBytesPerUs = 4.67e6;

using Tokens = std::vector<uint32_t>;

/// The tokens that one sequence has decided.
Tokens tokens_of(mk::TensorMemory& memory, const mk::DenseDecoder& decoder,
                 const Settings& settings, uint32_t positions_max, uint32_t sequence = 0) {
  Tokens all(settings.context + settings.tokens + 1);
  memory.read(TensorView::of(std::span(all)),
              {decoder.tokens + size_t{sequence} * (positions_max + 1), {all.size()}});
  return {all.end() - settings.tokens, all.end()};
}

constexpr uint32_t kFirstToken = 77;

/// Resets all sequences to the end of the context, with first tokens `first`, `first` + 1, ... Rows
/// of the cache beyond it will be overwritten.
void rewind(mk::TensorMemory& memory, const mk::DenseDecoder& decoder, const Settings& settings,
            uint32_t sequences = 1, uint32_t first = kFirstToken) {
  Tokens tokens(sequences);
  std::iota(tokens.begin(), tokens.end(), first);
  const std::vector<uint32_t> positions(sequences, settings.context);
  memory.write({decoder.token, {sequences}}, {tokens.data(), {sequences}});
  memory.write({decoder.position, {sequences}}, {positions.data(), {sequences}});
}

mk::DecoderShape shape_of(const Settings& settings) {
  const uint32_t positions = (settings.context + settings.tokens + 16) / 16 * 16;
  return settings.device == "host" ? tiny(positions) : mk::llama_1b(positions);
}

uint32_t blocks_of(const World& world, const mk::DecoderShape& shape, uint32_t sequences = 1) {
  return accelerator_of(world).kind() != AcceleratorKind::gpu
             ? std::max(4u, shape.kv_heads / world.size() * sequences)
             : shape.blocks_of(accelerator_of(world).capacity().multiprocessors, world.size());
}

mk::MegakernelOptions options_of(const Settings& settings, uint32_t blocks,
                                 const mk::DenseDecoder& decoder) {
  return {.workers = blocks,
          .unit_bytes = decoder.unit_bytes(),
          .ring_units = settings.ring_units,
          .in_flight = settings.in_flight,
          .trace_records = settings.trace ? 4096u : 0u};
}

mk::DecoderOptions decoder_options(uint32_t blocks, uint32_t sequences,
                                   const mk::Graph::Place& place = {}) {
  return {.blocks = blocks,
          .prompts = std::vector<Tokens>(sequences, Tokens{kFirstToken}),
          .place = place};
}

/// Returns us per step of each run. Throws unless each sequence gets the tokens that it gets alone.
std::vector<double> timed_runs(World& world, mk::TensorMemory& memory,
                               const mk::DenseDecoder& decoder, const Settings& settings,
                               uint32_t blocks, const std::vector<Tokens>& expected) {
  const auto sequences = static_cast<uint32_t>(expected.size());
  const uint32_t positions_max = shape_of(settings).positions_max;
  mk::Megakernel kernel(world, decoder.graph(), options_of(settings, blocks, decoder));
  std::vector<double> samples;
  for (uint32_t repetition = 0; repetition <= settings.runs; ++repetition) {
    rewind(memory, decoder, settings, sequences);
    world.barrier("bench: sequences are reset");
    const uint32_t ran = kernel.run(settings.tokens);
    if (ran != settings.tokens) throw InternalError(fmt::format("the loop ended after {}", ran));
    for (uint32_t s = 0; s < sequences; ++s)
      if (tokens_of(memory, decoder, settings, positions_max, s) != expected[s])
        throw InternalError(
            fmt::format("sequence {} of {} on rank {} of {} gets other tokens "
                        "than alone on one rank",
                        s, sequences, world.rank(), world.size()));
    if (repetition > 0)  // The first run warms up.
      samples.push_back(kernel.last_run_ms() * 1e3 / settings.tokens);
  }
  if (settings.trace && world.rank() == 0) {
    const mk::Trace trace = kernel.trace();
    fmt::print("{}", trace.summary().text(trace.spans, trace.tasks));
  }
  world.barrier("bench: all runs have ended");
  return samples;
}

/// Returns us per step of each run of several ranks, of the slowest rank.
std::vector<double> by_ranks(const Settings& settings, uint32_t ranks,
                             const std::vector<Tokens>& expected) {
  const mk::DecoderShape shape = shape_of(settings);
  const auto sequences = static_cast<uint32_t>(expected.size());
  const auto worlds = worlds_apart(ranks, settings.device);
  const uint32_t blocks = blocks_of(*worlds[0], shape, sequences);
  std::vector<double> slowest(settings.runs);
  std::mutex mutex;
  on_each_rank(worlds, [&](World& world) {
    const mk::Graph::Place place{.rank = world.rank(), .ranks = ranks};
    mk::TensorMemory memory(world);
    const mk::DecoderWeights weights = random_weights(memory, shape, place);
    const mk::DenseDecoder decoder(memory, shape, weights,
                                   decoder_options(blocks, sequences, place));
    fill_cache(memory, decoder, shape, place, sequences);
    const std::vector<double> mine = timed_runs(world, memory, decoder, settings, blocks, expected);
    const std::lock_guard lock(mutex);
    for (uint32_t i = 0; i < settings.runs; ++i) slowest[i] = std::max(slowest[i], mine[i]);
  });
  return slowest;
}

/// Returns us per step of each run of several sequences on one rank.
std::vector<double> by_sequences(World& world, mk::TensorMemory& memory,
                                 const mk::DecoderWeights& weights, const Settings& settings,
                                 const std::vector<Tokens>& expected) {
  const mk::DecoderShape shape = shape_of(settings);
  const auto sequences = static_cast<uint32_t>(expected.size());
  const uint32_t blocks = blocks_of(world, shape, sequences);
  const mk::DenseDecoder decoder(memory, shape, weights, decoder_options(blocks, sequences));
  fill_cache(memory, decoder, shape, {}, sequences);
  return timed_runs(world, memory, decoder, settings, blocks, expected);
}

/// Returns the tokens that sequences with consecutive first tokens get, each run alone.
std::vector<Tokens> tokens_alone(mk::TensorMemory& memory, const mk::DenseDecoder& decoder,
                                 mk::Megakernel& kernel, const Settings& settings,
                                 uint32_t sequences) {
  std::vector<Tokens> found;
  for (uint32_t s = 0; s < sequences; ++s) {
    rewind(memory, decoder, settings, 1, kFirstToken + s);
    kernel.run(settings.tokens);
    found.push_back(tokens_of(memory, decoder, settings, shape_of(settings).positions_max));
  }
  return found;
}

void run(const Settings& settings) {
  const auto world = std::move(worlds_on(1, settings.device)[0]);
  const bool host = settings.device == "host";
  const mk::DecoderShape shape = shape_of(settings);
  mk::TensorMemory memory(*world);
  const mk::DecoderWeights weights = random_weights(memory, shape);
  const uint32_t blocks = blocks_of(*world, shape);
  const mk::DecoderOptions options = decoder_options(blocks, 1);
  const mk::DenseDecoder decoder(memory, shape, weights, options);
  const mk::DenseDecoder apart(memory, shape, weights, options);
  fill_cache(memory, decoder, shape);
  fill_cache(memory, apart, shape);
  mk::Megakernel kernel(*world, decoder.graph(), options_of(settings, blocks, decoder));
  SeparateStages stages(*world, memory, apart, settings.tokens,
                        {.in_flight = settings.in_flight, .ring_units = settings.ring_units});

  std::vector<double> in_one, in_many;
  for (uint32_t repetition = 0; repetition <= settings.runs; ++repetition) {
    rewind(memory, decoder, settings);
    const uint32_t ran = kernel.run(settings.tokens);
    if (ran != settings.tokens) throw InternalError(fmt::format("the loop ended after {}", ran));
    rewind(memory, apart, settings);
    const double apart_ms = stages.run_ms();
    if (tokens_of(memory, decoder, settings, shape.positions_max) !=
        tokens_of(memory, apart, settings, shape.positions_max))
      throw InternalError("the megakernel and separate kernels get different tokens");
    if (repetition == 0) continue;  // The first run warms up.
    in_one.push_back(kernel.last_run_ms() * 1e3 / settings.tokens);
    in_many.push_back(apart_ms * 1e3 / settings.tokens);
  }
  if (settings.trace) {
    const mk::Trace trace = kernel.trace();
    fmt::print("{}", trace.summary().text(trace.spans, trace.tasks));
  }
  Report report("megakernel", *world);
  const auto add = [&](const std::string& name, const std::vector<double>& samples,
                       uint32_t ranks = 1, uint32_t sequences = 1) {
    report.add({.name = name,
                .gpus = host ? 0u : ranks,
                .ranks = ranks,
                .tokens = settings.tokens,
                .hidden = shape.hidden,
                .sms = blocks,
                .ours = spread_of(samples),
                .floor = bytes_of_step(shape, settings.context + settings.tokens / 2, sequences) /
                         kStreamedBytesPerUs / ranks});
  };
  const std::string shared = "decode, megakernels that share a model";
  const auto side_by_side = [](uint32_t sequences) {
    return fmt::format(", {} sequences side by side", sequences);
  };
  add("decode, megakernel", in_one);
  add("decode, kernels in a graph with PDL", in_many);
  for (const uint32_t ranks : settings.ranks)
    add(shared, by_ranks(settings, ranks, tokens_alone(memory, decoder, kernel, settings, 1)),
        ranks);
  for (const uint32_t sequences : settings.sequences) {
    const std::vector<Tokens> expected = tokens_alone(memory, decoder, kernel, settings, sequences);
    add("decode" + side_by_side(sequences),
        by_sequences(*world, memory, weights, settings, expected), 1, sequences);
    for (const uint32_t ranks : settings.ranks)
      add(shared + side_by_side(sequences), by_ranks(settings, ranks, expected), ranks, sequences);
  }
  report.finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(argc, argv);
  if (smoke)
    settings = {.device = "host",
                .output = {},
                .context = 5,
                .tokens = 4,
                .runs = 1,
                .ranks = {2, 4},
                .sequences = {2, 8}};
  CLI::App app("Measures a decode step as one megakernel and as many kernels",
               "./run bench megakernel_decode");
  app.option_defaults()->always_capture_default();
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--context", settings.context, "positions before the first token")
      ->check(in_range(1, 7000));
  app.add_option("--tokens", settings.tokens, "tokens per run")->check(in_range(1, 1000));
  app.add_option("--runs", settings.runs, "measured runs")->check(in_range(1, 1000));
  app.add_option("--ring-units", settings.ring_units, "units per warp; 0: chosen")
      ->check(in_range(0, 1 << 20));
  app.add_option("--in-flight", settings.in_flight, "copies in flight per warp")
      ->check(in_range(1, 1 << 20));
  app.add_option("--ranks", settings.ranks, "ranks that share the model, such as 2,4")
      ->delimiter(',')
      ->check(in_range(2, 8));
  app.add_option("--sequences", settings.sequences, "sequences per batch, such as 2,4,8")
      ->delimiter(',')
      ->check(CLI::IsMember({2, 4, 8}));
  app.add_option("--output", settings.output, "JSON file to write");
  app.add_flag("--trace", settings.trace, "also print where the time goes");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  return exit_of_run([&] { run(settings); });
}
