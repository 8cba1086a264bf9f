// Measures throughput dispatch and combine on one host, one thread per rank: the device time of a
// whole call, the exchange of counts included. Results are checked bit for bit before anything is
// timed.
//
//   ./run bench throughput                          # on 4, 2 or 1 GPUs, as available
//   ./run bench throughput --sms 8,16,24 --tokens 8192
//   ./run bench throughput --ranks 2 --sweep --output bench/results/throughput_2_gpus.json
//   ./run bench throughput --cases "dispatch bf16" --trace    # where the time of a call goes
//   ./run bench throughput --device host --smoke    # a smoke test
//
// A time is that of a single call between two events; with --together N it is that of N successive
// calls divided by N, which spreads the cost of events and launches.
//
// The floor is the bytes that the busiest rank must send or receive over the link's measured rate
// (347 GB/s by stores, H200 NVLink, with 8 or more SMs).

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>
#include <string>

#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/time_calls.hpp"
#include "bench/throughput/check.hpp"
#include "bench/throughput/scenes.hpp"
#include "bench/throughput/trace.hpp"
#include "device/accelerator.hpp"
#include "expert_parallel/throughput/host/options.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {
namespace {

constexpr double kLinkBytesPerUs = 347e3;

struct Settings {
  Scene scene{.shape = {.ranks = 0, .tokens = 4096, .hidden = 7168, .topk = 8, .experts = 256},
              .sms = {16, 24}};
  bool sweep = false;
  uint32_t calls = 20, together = 1;
  std::string device = "cuda", output, cases;
  ExpertParallelOptions::Tuning tuning;
  bool unchecked = false, trace = false;
};

/// The measured cases, in this order.
constexpr std::array<const char*, 13> kCases{"dispatch bf16 uncached",
                                             "dispatch bf16, no host waits",
                                             "dispatch fp8 uncached",
                                             "dispatch bf16 cached",
                                             "dispatch bf16 into expert-major",
                                             "dispatch bf16, then expert-major",
                                             "combine bf16, y in the arena",
                                             "combine bf16, ordinary y",
                                             "combine bf16 from expert-major",
                                             "dispatch bf16, then expert-major on all",
                                             "expand bf16 on all",
                                             "expand bf16 on all, padding as it is",
                                             "combine bf16, summed by expert on all"};

bool asked_for(const Settings& settings, const char* name) {
  return std::string(name).find(settings.cases) != std::string::npos;
}

ExpertParallelOptions options_of(const Settings& settings, const Shape& shape, uint32_t sms) {
  return {.experts = shape.experts,
          .hidden = shape.hidden,
          .topk = shape.topk,
          .tokens_max = shape.tokens,
          .sms = sms,
          .tuning = settings.tuning};
}

/// Throws InvalidArgument for options that the library would reject, before tokens are drawn: the
/// draw needs more experts than a token chooses, and the same number on each rank.
void check_settings(const Settings& settings, const std::vector<Scene>& scenes) {
  for (const Scene& scene : scenes) require_equal_shares(scene.shape.experts, scene.shape.ranks);
  for (const Scene& scene : scenes)
    for (const uint32_t sms : scene.sms)
      check_options(options_of(settings, scene.shape, sms), scene.shape.ranks);
  if (std::none_of(kCases.begin(), kCases.end(),
                   [&](const char* name) { return asked_for(settings, name); }))
    throw InvalidArgument("cases", fmt::format("a part of \"{}\"", fmt::join(kCases, "\", \"")),
                          fmt::format("\"{}\"", settings.cases));
}

void run_rank(World& world, const Settings& settings, const Scene& scene, Report* report) {
  const Shape& shape = scene.shape;
  Accelerator& accelerator = accelerator_of(world);
  const Stream stream = accelerator.make_stream();
  {
    Tensors tensors(world, shape, scene.skew);
    const double remote_rows = static_cast<double>(busiest_remote_rows(shape, 0, scene.skew));
    const double row_bytes = shape.hidden * 2.0, metadata_bytes = shape.topk * 8.0 + 4;
    for (const uint32_t sms : scene.sms) {
      ExpertParallel exchange(world, options_of(settings, shape, sms));
      if (!settings.unchecked)
        check(world, exchange, tensors, shape, scene.skew, settings.sweep ? 1 : kSets, stream);
      if (!settings.unchecked) check_by_expert(world, exchange, tensors, shape, stream);
      exchange.trace_calls(settings.trace);

      const auto measure = [&](const char* name, double bytes, auto body) {
        if (std::find(kCases.begin(), kCases.end(), std::string(name)) == kCases.end())
          throw InternalError(fmt::format("kCases has no \"{}\"", name));
        if (!asked_for(settings, name)) return;
        const Spread ours =
            over_ranks(world, time_calls(world, stream, settings.calls, settings.together, body));
        const std::vector<Moment> moments =
            settings.trace ? moments_of(exchange.last_trace()) : std::vector<Moment>{};
        if (report && settings.trace) print(moments, name);
        const bool linked = settings.device == "cuda" && shape.ranks > 1;
        if (report)
          report->add({.name = name + scene.remark(),
                       .gpus = settings.device == "cuda" ? shape.ranks : 0,
                       .ranks = shape.ranks,
                       .tokens = shape.tokens,
                       .hidden = shape.hidden,
                       .sms = exchange.sms(),
                       .ours = ours,
                       .floor = linked ? bytes / kLinkBytesPerUs : 0,
                       .moments = moments});
      };
      measure("dispatch bf16 uncached", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) { exchange.dispatch(tensors.input(call), stream); });
      DispatchInput unwaited = tensors.input(0);
      unwaited.received_tokens_max = shape.ranks * shape.tokens;
      measure("dispatch bf16, no host waits", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t) { exchange.dispatch(unwaited, stream); });
      const double fp8_bytes = shape.hidden + shape.hidden / 128 * 4.0;
      if (shape.hidden % 128 == 0)
        measure("dispatch fp8 uncached", remote_rows * (fp8_bytes + metadata_bytes),
                [&](uint32_t call) { exchange.dispatch(tensors.input_fp8(call, shape), stream); });
      const Received received = exchange.dispatch(tensors.input(0), stream);
      measure("dispatch bf16 cached", remote_rows * row_bytes, [&](uint32_t) {
        exchange.dispatch({.x = tensors.input(0).x}, *received.route, stream);
      });
      measure("dispatch bf16 into expert-major", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) {
                exchange.dispatch_by_expert(tensors.input(call), {.alignment = 128}, stream);
              });
      measure("dispatch bf16, then expert-major", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) {
                const Received got = exchange.dispatch(tensors.input(call), stream);
                exchange.group_by_expert(got, {.alignment = 128}, stream);
              });
      const CombineBuffer y = exchange.combine_buffer(*received.route, DataType::bfloat16, stream);
      accelerator.copy(y.y.data, received.x.data, received.x.bytes(), stream);
      measure("combine bf16, y in the arena", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine({.y = y.y}, *received.route, {.x = tensors.out}, stream);
      });
      measure("combine bf16, ordinary y", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine({.y = tensors.results(received.rows)}, *received.route, {.x = tensors.out},
                         stream);
      });
      const ExpertRows rows = exchange.group_by_expert(received, {.alignment = 128}, stream);
      measure("combine bf16 from expert-major", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine({.y = rows.x, .by_expert = &rows}, *received.route, {.x = tensors.out},
                         stream);
      });
      // The part of a call that needs no other rank on all multiprocessors of the GPU, like the
      // epilogue kernels of DeepEP's second version.
      const uint32_t all = accelerator.capacity().multiprocessors;
      measure("dispatch bf16, then expert-major on all", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) {
                const Received got = exchange.dispatch(tensors.input(call), stream);
                exchange.group_by_expert(got, {.alignment = 128, .sms = all}, stream);
              });
      measure("expand bf16 on all", 0, [&](uint32_t) {
        exchange.group_by_expert(received, {.alignment = 128, .sms = all}, stream);
      });
      measure("expand bf16 on all, padding as it is", 0, [&](uint32_t) {
        exchange.group_by_expert(received, {.alignment = 128, .sms = all, .clear_padding = false},
                                 stream);
      });
      measure("combine bf16, summed by expert on all", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine({.y = rows.x, .by_expert = &rows, .local_sms = all}, *received.route,
                         {.x = tensors.out}, stream);
      });
      exchange.wait(stream);
    }
  }
  accelerator.free_stream(stream);
}

void run(const Settings& settings) {
  const std::vector<Scene> scenes =
      settings.sweep ? sweep(settings.scene) : std::vector<Scene>{settings.scene};
  check_settings(settings, scenes);
  size_t row_bytes_most = 0, padding_most = 0;
  for (const Scene& scene : scenes) {
    const Shape& shape = scene.shape;
    row_bytes_most =
        std::max(row_bytes_most, size_t{shape.ranks} * shape.tokens * shape.hidden * 2);
    padding_most =
        std::max(padding_most, size_t{shape.experts} / shape.ranks * 128 * shape.hidden * 2);
  }
  auto worlds = worlds_apart(
      settings.scene.shape.ranks, settings.device,
      {.arena_bytes = (size_t{64} << 20) + (8 + 2 * settings.scene.shape.topk) * row_bytes_most +
                      4 * padding_most});
  Report report("throughput", *worlds[0]);
  for (const Scene& scene : scenes) {
    on_each_rank(worlds, [&](World& world) {
      run_rank(world, settings, scene, world.rank() == 0 ? &report : nullptr);
    });
    report.finish(
        settings.output);  // Written after each scene, in case a later one takes too long.
  }
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(argc, argv);
  Scene& scene = settings.scene;
  Shape& shape = scene.shape;
  shape.ranks = 4;
  if (smoke) {
    shape = {.ranks = 2, .tokens = 64, .hidden = 256, .topk = 2, .experts = 8};
    settings.device = "host";
    scene.sms = {2};
    settings.calls = 2;
  }
  CLI::App app("Checks throughput dispatch and combine, then measures their device time",
               "./run bench throughput");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", shape.ranks, "ranks; on cuda one GPU each")
      ->check(in_range(1, 1 << 20));
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--tokens", shape.tokens, "tokens per rank")->check(in_range(0, 1 << 20));
  app.add_option("--hidden", shape.hidden, "elements per token")->check(in_range(1, 1 << 20));
  app.add_option("--topk", shape.topk, "experts per token")->check(in_range(1, 1 << 20));
  app.add_option("--experts", shape.experts, "experts of all ranks together")
      ->check(in_range(1, 1 << 20));
  app.add_option("--skew", scene.skew, "Zipf exponent of the experts' load; 0: uniform")
      ->check(in_range(0.0, 100.0));
  app.add_flag("--sweep", settings.sweep,
               "also measure other shapes, loads and numbers of multiprocessors");
  app.add_option("--sms", scene.sms, "multiprocessors per call; several to compare")
      ->delimiter(',')
      ->check(in_range(0, 1 << 20));
  app.add_option("--calls", settings.calls, "measured calls")->check(in_range(1, 10000));
  app.add_option("--together", settings.together, "successive calls between two events")
      ->check(in_range(1, 1 << 20));
  app.add_option("--cases", settings.cases, "only cases whose name contains this");
  app.add_option("--movers", settings.tuning.movers,
                 "warps per block that move rows, 1 to 8; 0: chosen")
      ->check(in_range(0, 1 << 20));
  app.add_option("--kept-percent", settings.tuning.kept_percent,
                 "percentage of its tokens that a block keeps from others, 1 to 100; 0: chosen")
      ->check(in_range(0, 1 << 20));
  app.add_option("--stages", settings.tuning.stages, "most rows in a mover's ring; 0: chosen")
      ->check(in_range(0, 1 << 20));
  app.add_option("--lag", settings.tuning.lag,
                 "approximate number of those rows that stores may still read; 0: chosen")
      ->check(in_range(0, 1 << 20));
  app.add_flag("--unchecked", settings.unchecked, "skip the check of results");
  app.add_flag("--trace", settings.trace, "print when blocks reach each moment of a call");
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/throughput.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  return exit_of_run([&] { run(settings); });
}
