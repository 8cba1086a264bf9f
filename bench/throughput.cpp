// How long a throughput dispatch and combine take: the whole device time of a call, counting
// included, on one host, a thread a rank. Results are checked, bit for bit, before anything is
// timed.
//
//   ./run bench throughput                          # on as many of 4, 2, 1 GPUs as there are
//   ./run bench throughput --sms 8,16,24 --tokens 8192
//   ./run bench throughput --cases "dispatch bf16" --trace    # where the time of a call goes
//   ./run bench throughput --device host --smoke    # small, to see that it works
//
// A time is that of one call by itself, from an event before it to one after it; with --together N,
// of N calls one after the other, divided by N, so that what events and launches cost is shared.
//
// The floor is the bytes that the busiest rank must send or receive over the link's measured rate
// (347 GB/s by stores, H200 NVLink, 8 SMs and more).

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <string>

#include "bench/harness/device_memory.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/pause.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/workload.hpp"
#include "device/accelerator.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {
namespace {

constexpr double kLinkBytesPerUs = 347e3;
constexpr uint32_t kSets =
    3;  // Input sets taken in turn, so that no call finds its rows in a cache.

struct Settings {
  Shape shape{.ranks = 0, .tokens = 4096, .hidden = 7168, .topk = 8, .experts = 256};
  std::vector<uint32_t> sms{16, 24};
  uint32_t calls = 20, together = 1;
  std::string device = "cuda", output, cases;
  ExpertParallelOptions::Tuning tuning;
  bool unchecked = false, trace = false;
};

/// One rank's inputs and outputs in memory that its kernels read.
class Tensors : public DeviceMemory {
 public:
  Tensors(World& world, const Shape& shape) : DeviceMemory(world.accelerator()) {
    for (uint32_t set = 0; set < kSets; ++set) {
      const Workload made = make_workload(shape, world.rank(), set);
      inputs_.push_back({.x = upload(made.x),
                         .topk_idx = upload(made.topk_idx),
                         .topk_weights = upload(made.topk_weights),
                         .tokens = shape.tokens});
    }
    out = reserve(size_t{shape.tokens} * shape.hidden * 2);
    y = reserve(size_t{shape.tokens} * shape.ranks * shape.hidden * 2);
  }
  const DispatchInput& input(uint32_t call) const { return inputs_[call % kSets]; }
  /// The same bits as FP8 rows of half the bytes, with a scale for 128 channels.
  DispatchInput input_fp8(uint32_t call, const Shape& shape) const {
    DispatchInput input = inputs_[call % kSets];
    input.format = {.type = ElementType::fp8_e4m3, .scale_words = shape.hidden / 128};
    input.scales = y;
    return input;
  }
  void* out;  ///< [tokens, hidden] bf16
  void* y;    ///< ordinary memory for results, of as many rows as can come

 private:
  std::vector<DispatchInput> inputs_;
};

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Every row in its place, and a combine of the received rows themselves gives each token as many
/// times as it has ranks.
void check(World& world, ExpertParallel& exchange, Tensors& tensors, const Shape& shape,
           Stream stream) {
  for (uint32_t set = 0; set < kSets; ++set) {
    Received received = exchange.dispatch(tensors.input(set), stream.native);
    const auto rows =
        tensors.download<uint16_t>(received.x, size_t{received.rows} * shape.hidden, stream);
    const auto tokens = tensors.download<int32_t>(received.source_token, received.rows, stream);
    size_t row = 0;
    for (uint32_t source = 0; source < shape.ranks; ++source) {
      const Workload sent = make_workload(shape, source, set);
      const auto goes = destinations(shape, sent);
      for (uint32_t token = 0; token < shape.tokens; ++token) {
        if (!goes[token * shape.ranks + world.rank()]) continue;
        if (row >= received.rows || tokens[row] != static_cast<int32_t>(token) ||
            std::memcmp(&rows[row * shape.hidden], &sent.x[size_t{token} * shape.hidden],
                        size_t{shape.hidden} * 2))
          throw InternalError(fmt::format("set {}: row {} of rank {} is not token {} of rank {}",
                                          set, row, world.rank(), token, source));
        ++row;
      }
    }
    if (row != received.rows)
      throw InternalError(
          fmt::format("rank {} received {} rows, not {}", world.rank(), received.rows, row));

    exchange.combine(received.x, *received.route, tensors.out, nullptr, nullptr, stream.native);
    exchange.wait(stream.native);
    const auto out =
        tensors.download<uint16_t>(tensors.out, size_t{shape.tokens} * shape.hidden, stream);
    const Workload mine = make_workload(shape, world.rank(), set);
    const auto goes = destinations(shape, mine);
    for (uint32_t token = 0; token < shape.tokens; ++token) {
      uint32_t ranks = 0;
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) ranks += goes[token * shape.ranks + rank];
      for (uint32_t i = 0; i < shape.hidden; ++i) {
        const size_t at = size_t{token} * shape.hidden + i;
        float sum = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) sum += from_bf16(mine.x[at]);
        if (out[at] != to_bf16(sum))
          throw InternalError(
              fmt::format("set {}: element {} of token {} on rank {}: {:#06x}, not {:#06x}", set, i,
                          token, world.rank(), out[at], to_bf16(sum)));
      }
    }
  }
}

/// Device time in us of each of `calls` calls of `body` on this rank. Ranks start each call
/// together, behind a pause, so that neither launch latency nor a late rank is counted.
template <class Body>
std::vector<double> time_calls(World& world, Stream stream, uint32_t calls, uint32_t together,
                               Body body) {
  Accelerator& accelerator = world.accelerator();
  const uint32_t pause_ns = accelerator.kind() == AcceleratorKind::gpu ? 100'000 : 0;
  constexpr uint32_t kWarmUp = 3;
  std::vector<double> us;
  for (uint32_t call = 0; call < calls + kWarmUp; ++call) {
    world.barrier("bench: start of a call");
    launch(accelerator, pause_kernel, {.blocks = 1, .warps = 1, .cooperative = false}, stream,
           PauseParams{pause_ns});
    const Event begin = accelerator.record(stream);
    for (uint32_t i = 0; i < together; ++i) body(call + i);
    const Event end = accelerator.record(stream);
    if (!accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                [&] { return accelerator.done(end); }))
      throw InternalError("a measured call did not end within 30 s");
    if (call >= kWarmUp) us.push_back(accelerator.elapsed_ms(begin, end) * 1e3 / together);
    accelerator.free_event(begin);
    accelerator.free_event(end);
  }
  return us;
}

/// Of each call the slowest rank's time. Collective.
Spread over_ranks(World& world, const std::vector<double>& mine) {
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "bench: times");
  std::vector<double> slowest(mine.size());
  for (const auto& bytes : all)
    for (size_t call = 0; call < mine.size(); ++call) {
      double us;
      std::memcpy(&us, bytes.data() + call * sizeof us, sizeof us);
      slowest[call] = std::max(slowest[call], us);
    }
  return spread_of(slowest);
}

/// Of the last call: when the first block reached each moment, the middle one and the last one, in
/// us after the first one began.
void print_trace(const std::vector<ExpertParallel::Moment>& trace, const char* what) {
  std::map<std::string, std::vector<uint64_t>> moments;
  uint64_t begun = UINT64_MAX;
  for (const ExpertParallel::Moment& moment : trace) {
    moments[moment.name].push_back(moment.ns);
    begun = std::min(begun, moment.ns);
  }
  std::vector<std::pair<uint64_t, std::string>> lines;
  for (auto& [name, ns] : moments) {
    std::sort(ns.begin(), ns.end());
    const auto us = [&](uint64_t at) { return static_cast<double>(at - begun) * 1e-3; };
    lines.emplace_back(ns.front(),
                       fmt::format("{:>10}  {:7.1f} {:7.1f} {:7.1f}", name, us(ns.front()),
                                   us(ns[ns.size() / 2]), us(ns.back())));
  }
  std::sort(lines.begin(), lines.end());
  fmt::print("moments of {}, rank 0\n", what);
  for (const auto& [ns, line] : lines) fmt::print("{}\n", line);
}

void run_rank(World& world, const Settings& settings, Report* report) {
  const Shape& shape = settings.shape;
  Accelerator& accelerator = world.accelerator();
  const Stream stream = accelerator.make_stream();
  {
    Tensors tensors(world, shape);
    const double remote_rows = static_cast<double>(busiest_remote_rows(shape, 0));
    const double row_bytes = shape.hidden * 2.0, metadata_bytes = shape.topk * 8.0 + 4;
    for (const uint32_t sms : settings.sms) {
      ExpertParallel exchange(world, {.experts = shape.experts,
                                      .hidden = shape.hidden,
                                      .topk = shape.topk,
                                      .tokens_max = shape.tokens,
                                      .sms = sms,
                                      .tuning = settings.tuning});
      if (!settings.unchecked) check(world, exchange, tensors, shape, stream);
      exchange.trace_calls(settings.trace);

      const auto measure = [&](const char* name, double bytes, auto body) {
        if (std::string(name).find(settings.cases) == std::string::npos) return;
        const Spread ours =
            over_ranks(world, time_calls(world, stream, settings.calls, settings.together, body));
        if (report && settings.trace) print_trace(exchange.last_trace(), name);
        const bool linked = settings.device == "cuda" && shape.ranks > 1;
        if (report)
          report->add({.name = name,
                       .gpus = settings.device == "cuda" ? shape.ranks : 0,
                       .ranks = shape.ranks,
                       .tokens = shape.tokens,
                       .hidden = shape.hidden,
                       .sms = exchange.sms(),
                       .ours = ours,
                       .floor = linked ? bytes / kLinkBytesPerUs : 0});
      };
      measure("dispatch bf16 uncached", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) { exchange.dispatch(tensors.input(call), stream.native); });
      DispatchInput unwaited = tensors.input(0);
      unwaited.received_tokens_max = shape.ranks * shape.tokens;
      measure("dispatch bf16, no host waits", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t) { exchange.dispatch(unwaited, stream.native); });
      const double fp8_bytes = shape.hidden + shape.hidden / 128 * 4.0;
      if (shape.hidden % 128 == 0)
        measure("dispatch fp8 uncached", remote_rows * (fp8_bytes + metadata_bytes),
                [&](uint32_t call) {
                  exchange.dispatch(tensors.input_fp8(call, shape), stream.native);
                });
      const Received received = exchange.dispatch(tensors.input(0), stream.native);
      measure("dispatch bf16 cached", remote_rows * row_bytes, [&](uint32_t) {
        exchange.dispatch(tensors.input(0).x, *received.route, stream.native);
      });
      measure("dispatch bf16 into expert-major", remote_rows * (row_bytes + metadata_bytes),
              [&](uint32_t call) {
                const Received got = exchange.dispatch(tensors.input(call), stream.native);
                exchange.expand(got, {.alignment = 128}, stream.native);
              });
      const auto y = exchange.output_buffer(*received.route, stream.native);
      accelerator.copy(y.get(), received.x, size_t{received.rows} * shape.hidden * 2, stream);
      measure("combine bf16, y in the arena", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine(y.get(), *received.route, tensors.out, nullptr, nullptr, stream.native);
      });
      measure("combine bf16, ordinary y", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine(tensors.y, *received.route, tensors.out, nullptr, nullptr, stream.native);
      });
      const ExpertRows rows = exchange.expand(received, {.alignment = 128}, stream.native);
      measure("combine bf16 from expert-major", remote_rows * row_bytes, [&](uint32_t) {
        exchange.combine({.y = rows.x, .by_expert = &rows}, *received.route, {.x = tensors.out},
                         stream.native);
      });
      exchange.wait(stream.native);
    }
  }
  accelerator.free_stream(stream);
}

void run(const Settings& settings) {
  const size_t rows = size_t{settings.shape.ranks} * settings.shape.tokens;
  auto worlds =
      World::in_process(settings.shape.ranks, settings.device,
                        {.arena_bytes = (size_t{64} << 20) + (8 + 2 * settings.shape.topk) * rows *
                                                                 settings.shape.hidden * 2});
  Report report("throughput", *worlds[0]);
  on_each_rank(worlds, [&](World& world) {
    run_rank(world, settings, world.rank() == 0 ? &report : nullptr);
  });
  report.finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = false;
  settings.shape.ranks = 4;
  CLI::App app("Device time of throughput dispatch and combine, checked first");
  app.add_option("--ranks", settings.shape.ranks, "ranks; on cuda a GPU each")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--tokens", settings.shape.tokens, "tokens a rank");
  app.add_option("--hidden", settings.shape.hidden, "elements a token");
  app.add_option("--topk", settings.shape.topk, "experts a token");
  app.add_option("--experts", settings.shape.experts, "experts in all");
  app.add_option("--sms", settings.sms, "multiprocessors a call, several to compare")
      ->delimiter(',');
  app.add_option("--calls", settings.calls, "measured calls")->check(CLI::Range(1, 10000));
  app.add_option("--together", settings.together, "calls between two events")
      ->check(CLI::PositiveNumber);
  app.add_option("--cases", settings.cases, "only those whose name contains this");
  app.add_option("--kept-percent", settings.tuning.kept_percent, "see ExpertParallelOptions");
  app.add_option("--stages", settings.tuning.stages, "see ExpertParallelOptions");
  app.add_option("--lag", settings.tuning.lag, "see ExpertParallelOptions");
  app.add_flag("--unchecked", settings.unchecked, "without looking at results first");
  app.add_flag("--trace", settings.trace, "print when blocks reached each moment of a call");
  app.add_option("--output", settings.output, "a JSON file, such as bench/results/throughput.json");
  app.add_flag("--smoke", smoke, "small numbers on the host, to see that it works");
  CLI11_PARSE(app, argc, argv);
  if (smoke) {
    settings.shape = {.ranks = 2, .tokens = 64, .hidden = 256, .topk = 2, .experts = 8};
    settings.device = "host";
    settings.sms = {2};
    settings.calls = 2;
  }
  try {
    run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
