// A token of a Llama-3.2-1B-shaped model, batch 1: through the megakernel, with its checks and its
// watchdog, and by the same bodies of tasks as kernels of their own in a CUDA graph with
// programmatic dependent launch. Both begin from the same token and cache, and must find the same
// tokens before anything is timed.
//
//   ./run bench megakernel_decode                          # on a GPU
//   ./run bench megakernel_decode --device host --smoke    # small, to see that it works
//
// The floor is the time to read the weights and the cache once at 4.67 TB/s, which plain streaming
// reads reach on an H200.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "bench/harness/report.hpp"
#include "bench/megakernel_decode/model.hpp"
#include "bench/megakernel_decode/separate_stages.hpp"
#include "device/accelerator.hpp"

namespace tokenyard::bench {
namespace {

namespace mk = tokenyard::megakernel;

struct Settings {
  std::string device = "cuda", output;
  uint32_t context = 500, tokens = 24, runs = 7;
  uint32_t ring_units = 0, in_flight = 2;
  bool trace = false;
};
constexpr double kStreamedBytesPerUs = 4.67e6;

std::vector<uint32_t> tokens_of(mk::TensorMemory& memory, const mk::DenseDecoder& decoder,
                                const Settings& settings) {
  std::vector<uint32_t> all(settings.context + settings.tokens + 1);
  memory.read(all.data(), decoder.tokens, all.size() * sizeof(uint32_t));
  return {all.end() - settings.tokens, all.end()};
}

/// Back to the first token at the context's end. Rows of the cache beyond it are written again.
void rewind(mk::TensorMemory& memory, const mk::DenseDecoder& decoder, const Settings& settings) {
  const uint32_t token = 77;
  memory.write(decoder.token, &token, sizeof(token));
  memory.write(decoder.position, &settings.context, sizeof(settings.context));
}

void run(const Settings& settings) {
  const auto world = std::move(World::in_process(1, settings.device)[0]);
  const bool host = settings.device == "host";
  const uint32_t positions = (settings.context + settings.tokens + 16) / 16 * 16;
  const mk::DecoderShape shape = host ? tiny(positions) : llama_1b(positions);
  mk::TensorMemory memory(*world);
  const mk::DecoderWeights weights = random_weights(memory, shape);
  const uint32_t blocks =
      host ? 4 : shape.blocks_of(world->accelerator().capacity().multiprocessors);
  const mk::DecoderOptions options{.blocks = blocks, .prompt = {77}};
  const mk::DenseDecoder decoder(memory, shape, weights, options);
  const mk::DenseDecoder apart(memory, shape, weights, options);
  fill_cache(memory, decoder, shape);
  fill_cache(memory, apart, shape);
  mk::Megakernel kernel(*world, decoder.graph(),
                        {.workers = blocks,
                         .unit_bytes = decoder.unit_bytes(),
                         .ring_units = settings.ring_units,
                         .in_flight = settings.in_flight,
                         .trace_records = settings.trace ? 4096u : 0u});
  SeparateStages stages(*world, memory, apart, settings.tokens,
                        {.in_flight = settings.in_flight, .ring_units = settings.ring_units});

  std::vector<double> in_one, in_many;
  for (uint32_t repetition = 0; repetition <= settings.runs; ++repetition) {
    rewind(memory, decoder, settings);
    const uint32_t ran = kernel.run(settings.tokens);
    if (ran != settings.tokens) throw InternalError(fmt::format("the loop ended after {}", ran));
    rewind(memory, apart, settings);
    const double apart_ms = stages.run_ms();
    if (tokens_of(memory, decoder, settings) != tokens_of(memory, apart, settings))
      throw InternalError("the megakernel and separate kernels find different tokens");
    if (repetition == 0) continue;  // The first run warms up.
    in_one.push_back(kernel.last_run_ms() * 1e3 / settings.tokens);
    in_many.push_back(apart_ms * 1e3 / settings.tokens);
  }
  if (settings.trace) {
    const mk::Trace trace = kernel.trace();
    fmt::print("{}", trace.summary().text(trace.spans, trace.tasks));
  }
  Report report("megakernel", *world);
  const auto add = [&](const char* name, const std::vector<double>& samples) {
    report.add({.name = name,
                .gpus = host ? 0u : 1u,
                .ranks = 1,
                .tokens = settings.tokens,
                .hidden = shape.hidden,
                .sms = blocks,
                .ours = spread_of(samples),
                .floor = bytes_of_token(shape, settings.context + settings.tokens / 2) /
                         kStreamedBytesPerUs});
  };
  add("decode, megakernel", in_one);
  add("decode, kernels in a graph with PDL", in_many);
  report.finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = false;
  CLI::App app("A token through one kernel, and through many");
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--context", settings.context, "positions before the first token")
      ->check(CLI::Range(1, 7000));
  app.add_option("--tokens", settings.tokens, "a run")->check(CLI::Range(1, 1000));
  app.add_option("--runs", settings.runs, "measured runs")->check(CLI::Range(1, 1000));
  app.add_option("--ring-units", settings.ring_units,
                 "units a warp holds; 0: as the library likes");
  app.add_option("--in-flight", settings.in_flight, "copies of a warp under way");
  app.add_option("--output", settings.output, "a JSON file");
  app.add_flag("--trace", settings.trace, "also tell where time went");
  app.add_flag("--smoke", smoke, "small numbers on the host, to see that it works");
  CLI11_PARSE(app, argc, argv);
  if (smoke) settings = {.device = "host", .output = {}, .context = 5, .tokens = 4, .runs = 1};
  try {
    run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
