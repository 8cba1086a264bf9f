// Measures low-latency batches on one host, one thread per rank. Results are checked before
// anything is timed.
//
//   ./run bench low_latency                               # 4 GPUs, 128 tokens
//   ./run bench low_latency --tokens 1,16,64,128 --sms 0,48,24
//   ./run bench low_latency --quick                       # to alternate between two builds
//   ./run bench low_latency --device host --smoke         # a smoke test
//
// Calls are made in trains behind a pause. "In kernel" is the time from the first block's begin to
// the last one's end, averaged over a train; "per call" is a train's time between events, launches
// included, per call; "of a graph" is the same for a train captured as one CUDA graph.
//
// "Multiprocessors held" is the sum over the two kernels of a call with hooks of time times blocks,
// in us of one multiprocessor. The second kernel starts at once, so it also waits for rows in
// transit.
//
// "Early weights": dispatch sends the weights, so that combine need not.
//
// The floor is the bytes that the busiest rank must send or receive over the link's measured rate
// (347 GB/s by stores, H200 NVLink), without latency.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/low_latency/checks.hpp"
#include "bench/low_latency/trains.hpp"
#include "device/accelerator.hpp"
#include "expert_parallel/low_latency/host/options.hpp"
#include "expert_parallel/low_latency/host/plan.hpp"
#include "expert_parallel/low_latency/kernels/logfmt.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {
namespace {

constexpr double kLinkBytesPerUs = 347e3;

struct Settings {
  Shape shape{.ranks = 4, .tokens = 0, .hidden = 0, .topk = 0, .experts = 288};
  double zipf = 0;
  std::vector<uint32_t> tokens{128}, sms{0}, hidden{7168}, topk{8};
  uint32_t trains = 20;
  bool quick = false;
  std::string device = "cuda", output;
};

/// One rank's measurements of one shape and budget.
class Measurement {
 public:
  Measurement(World& world, const Settings& settings, const Batch& batch, uint32_t sms,
              Stream stream, Report* report)
      : world_(world),
        settings_(settings),
        batch_(batch),
        sms_(sms),
        stream_(stream),
        report_(report),
        tensors_(world, batch),
        exchange_(world, {.experts = batch.shape.experts,
                          .hidden = batch.shape.hidden,
                          .topk = batch.shape.topk,
                          .tokens_max = batch.shape.tokens,
                          .sms = sms}) {}

  void run() {
    for (uint32_t set = 0; set < kSets; ++set) {
      check_rows(world_, exchange_, tensors_, batch_, set, stream_);
      for (const bool logfmt : {false, true})
        for (const bool early : {false, true})
          check_home(world_, exchange_, tensors_, batch_, set, {logfmt, early}, stream_);
    }
    {
      // Any memory serves as y: its contents do not affect the time.
      const LowLatencyReceived first = dispatch(0, {}, false);
      y_ = exchange_.combine_buffer(first.handle);
    }
    run_both("");
    if (!settings_.quick) run_others();
    exchange_.wait(stream_);
    if (!exchange_.failed_ranks().empty())
      throw InternalError("a rank was masked while it was measured");
    exchange_.close();
  }

 private:
  /// Measures LogFMT, hooks and early weights.
  void run_others() {
    how_ = {.logfmt = true};
    const TrainTimes shorter = time_pairs(Launched::one_by_one);
    add("combine logfmt, in kernel", logfmt_, shorter.spans[2]);
    add("both with logfmt, per pair", fp8_ + logfmt_, shorter.call);
    how_ = {};
    run_hooks("hooks");
    how_ = {.early = true};
    run_both("early weights: ");
    run_hooks("early weights, hooks");
    how_ = {};
  }
  /// Measures trains of dispatches alone, then of pairs.
  void run_both(const std::string& which) {
    const TrainTimes dispatches = time([&](uint32_t call, const SpanMemory& spans) {
      dispatch(call, spans.of(call, Span::dispatch), false);
    });
    add(which + "dispatch fp8, in kernel", fp8_, dispatches.spans[0]);
    add(which + "dispatch fp8, per call", fp8_, dispatches.call);
    const TrainTimes pairs = time_pairs(Launched::one_by_one);
    add(which + "combine bf16, in kernel", bf16_, pairs.spans[2]);
    add(which + "both, per pair", fp8_ + bf16_, pairs.call);
    add(which + "both, per pair of a graph", fp8_ + bf16_, time_pairs(Launched::as_a_graph).call);
  }
  void run_hooks(const std::string& which) {
    const TrainTimes halves = time([&](uint32_t call, const SpanMemory& spans) {
      const auto got = dispatch(call, spans.of(call, Span::dispatch), true);
      exchange_.receive(got.handle, stream_);
      combine(call, got, spans.of(call, Span::combine), true);
      exchange_.receive(got.handle, stream_);
    });
    add(which + ": dispatch sends", 0, halves.spans[0]);
    add(which + ": dispatch receives", 0, halves.spans[1]);
    add(which + ": combine sends", 0, halves.spans[2]);
    add(which + ": combine receives", 0, halves.spans[3]);
    const low_latency::Plan plan = plan_of_calls();
    const uint32_t blocks = plan.blocks_max, tokens = batch_.shape.tokens;
    using low_latency::Part;
    const low_latency::RowLayout row =
        low_latency::row_layout(exchange_.options(), LowLatencyRows::fp8);
    const uint32_t receivers = plan.receivers_alone(blocks, row.units());
    add(which + ": dispatch, multiprocessors held", 0,
        held(halves.spans[0], plan.dispatch(Part::send, blocks, tokens), halves.spans[1],
             plan.dispatch(Part::receive, receivers, tokens)));
    add(which + ": combine, multiprocessors held", 0,
        held(halves.spans[2], plan.combine(Part::send, blocks, tokens, false), halves.spans[3],
             plan.combine(Part::receive, blocks, tokens, false)));
  }
  LowLatencyReceived dispatch(uint32_t call, const TensorView& span, bool hook) {
    return exchange_.dispatch(tensors_.input(call, LowLatencyRows::fp8, how_.early),
                              {.hook = hook, .span_ns = span, .stream = stream_});
  }
  void combine(uint32_t call, const LowLatencyReceived& got, const TensorView& span, bool hook) {
    exchange_.combine({.y = y_,
                       .topk_weights = how_.early ? ConstTensorView() : tensors_.weights(call),
                       .out = tensors_.out,
                       .logfmt = how_.logfmt},
                      got.handle, {.hook = hook, .span_ns = span, .stream = stream_});
  }
  /// Returns the plan of the exchange's calls.
  low_latency::Plan plan_of_calls() {
    Accelerator& accelerator = accelerator_of(world_);
    return low_latency::make_plan(exchange_.options(), world_.size(), accelerator.kind(),
                                  accelerator.capacity());
  }
  /// Returns, per train, the time of a call's two kernels times their blocks.
  static std::vector<double> held(const std::vector<double>& sends, low_latency::Split of_sends,
                                  const std::vector<double>& receives,
                                  low_latency::Split of_receives) {
    std::vector<double> sum(sends.size());
    for (size_t train = 0; train < sum.size(); ++train)
      sum[train] = sends[train] * of_sends.blocks + receives[train] * of_receives.blocks;
    return sum;
  }
  template <class Body>
  TrainTimes time(Body body, Launched how = Launched::one_by_one) {
    return time_trains(world_, tensors_, stream_, settings_.trains, how, body);
  }
  TrainTimes time_pairs(Launched how) {
    return time(
        [&](uint32_t call, const SpanMemory& spans) {
          const auto got = dispatch(call, spans.of(call, Span::dispatch), false);
          combine(call, got, spans.of(call, Span::combine), false);
        },
        how);
  }
  /// `row_bytes` 0: there is no floor.
  void add(const std::string& name, double row_bytes, const std::vector<double>& mine) {
    const Spread ours = over_ranks(world_, mine);
    if (report_ == nullptr) return;
    const bool on_gpus = settings_.device == "cuda";
    const std::string routed =
        batch_.zipf > 0 ? fmt::format("zipf {}: {}", batch_.zipf, name) : name;
    const bool linked = on_gpus && batch_.shape.ranks > 1;
    report_->add({.name = batch_.shape.topk == 8
                              ? routed
                              : fmt::format("top-{}: {}", batch_.shape.topk, routed),
                  .gpus = on_gpus ? batch_.shape.ranks : 0,
                  .ranks = batch_.shape.ranks,
                  .tokens = batch_.shape.tokens,
                  .hidden = batch_.shape.hidden,
                  .sms = sms_,
                  .ours = ours,
                  .floor = linked ? busiest_remote_rows(batch_) * row_bytes / kLinkBytesPerUs : 0});
  }

  World& world_;
  const Settings& settings_;
  const Batch batch_;
  const uint32_t sms_;
  const Stream stream_;
  Report* const report_;
  Tensors tensors_;
  LowLatency exchange_;
  TensorView y_;
  BatchKind how_;  ///< the batches that are timed
  // Bytes per row in transit.
  const double fp8_ = batch_.shape.hidden * (1 + 1.0 / 32), bf16_ = batch_.shape.hidden * 2.0;
  const double logfmt_ =
      (batch_.shape.hidden + 255) / 256 * low_latency::kLogFmtPiecesAChunk * sizeof(Bytes16);
};

void run_rank(World& world, const Settings& settings, Report* report) {
  const Stream stream = accelerator_of(world).make_stream();
  for (const uint32_t hidden : settings.hidden)
    for (const uint32_t topk : settings.topk)
      for (const uint32_t tokens : settings.tokens)
        for (const uint32_t sms : settings.sms) {
          Batch batch{settings.shape, settings.zipf};
          batch.shape.hidden = hidden;
          batch.shape.topk = topk;
          batch.shape.tokens = tokens;
          Measurement(world, settings, batch, sms, stream, report).run();
        }
  accelerator_of(world).free_stream(stream);
}

/// Throws InvalidArgument for options that the library would reject, before tokens are drawn.
void check_settings(const Settings& settings) {
  require_equal_shares(settings.shape.experts, settings.shape.ranks);
  for (const uint32_t hidden : settings.hidden)
    for (const uint32_t topk : settings.topk)
      for (const uint32_t tokens : settings.tokens)
        low_latency::check_options({.experts = settings.shape.experts,
                                    .hidden = hidden,
                                    .topk = topk,
                                    .tokens_max = tokens},
                                   settings.shape.ranks);
}

void run(const Settings& settings) {
  check_settings(settings);
  const LowLatency::Memory most = LowLatency::memory(
      {.experts = settings.shape.experts,
       .hidden = *std::max_element(settings.hidden.begin(), settings.hidden.end()),
       .topk = *std::max_element(settings.topk.begin(), settings.topk.end()),
       .tokens_max = *std::max_element(settings.tokens.begin(), settings.tokens.end())},
      settings.shape.ranks);
  auto worlds = worlds_apart(settings.shape.ranks, settings.device,
                             {.arena_bytes = most.arena_bytes + (size_t{16} << 20)});
  Report report("low_latency", *worlds[0]);
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
  bool smoke = asks_for_smoke(argc, argv);
  if (smoke) {
    settings.shape = {.ranks = 2, .tokens = 0, .hidden = 0, .topk = 0, .experts = 8};
    settings.device = "host";
    settings.tokens = {4, 16};
    settings.hidden = {256};
    settings.topk = {2};
    settings.sms = {3};
    settings.trains = 2;
  }
  CLI::App app("Checks low-latency dispatch and combine, then measures their device time",
               "./run bench low_latency");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", settings.shape.ranks, "ranks; on cuda one GPU each")
      ->check(in_range(1, 1 << 20));
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--tokens", settings.tokens, "tokens per rank; several to compare")
      ->delimiter(',')
      ->check(in_range(0, 1 << 20));
  app.add_option("--hidden", settings.hidden, "elements per token; several to compare")
      ->delimiter(',')
      ->check(in_range(1, 1 << 20));
  app.add_option("--topk", settings.topk, "experts per token; several to compare")
      ->delimiter(',')
      ->check(in_range(1, 1 << 20));
  app.add_option("--experts", settings.shape.experts, "experts of all ranks together")
      ->check(in_range(1, 1 << 20));
  app.add_option("--zipf", settings.zipf, "Zipf exponent of the experts' popularity; 0: uniform")
      ->check(in_range(0.0, 100.0));
  app.add_option("--sms", settings.sms, "multiprocessors per call, 0 for all; several to compare")
      ->delimiter(',')
      ->check(in_range(0, 1 << 20));
  app.add_option("--trains", settings.trains, "measured trains of 20 calls")
      ->check(in_range(1, 10000));
  app.add_flag("--quick", settings.quick, "skip hooks, logfmt and early weights");
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/low_latency.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  return exit_of_run([&] { run(settings); });
}
