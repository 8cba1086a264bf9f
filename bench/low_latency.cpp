// How long low-latency batches take: device time of a call in trains of calls behind a pause, on
// one host, a thread a rank. Results are checked before anything is timed.
//
//   ./run bench low_latency                               # 4 GPUs, 128 tokens
//   ./run bench low_latency --tokens 1,16,64,128 --sms 0,48,24
//   ./run bench low_latency --device host --smoke         # small, to see that it works
//
// The floor is the bytes that the busiest rank must send or receive over the link's measured rate
// (347 GB/s by stores, H200 NVLink), without a latency.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <exception>

#include "bench/harness/each_rank.hpp"
#include "bench/harness/pause.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/workload.hpp"
#include "device/accelerator.hpp"
#include "device/numbers.hpp"
#include "tokenyard/low_latency.hpp"

namespace tokenyard::bench {
namespace {

constexpr double kLinkBytesPerUs = 347e3;
/// Input sets taken in turn, so that no call finds its rows in a cache.
constexpr uint32_t kSets = 3;
/// Calls between two events, and how long their stream is held until all are enqueued.
constexpr uint32_t kTrain = 20, kPauseNs = 1'000'000;

struct Settings {
  Shape shape{.ranks = 4, .tokens = 0, .hidden = 7168, .topk = 8, .experts = 288};
  std::vector<uint32_t> tokens{128}, sms{0};
  uint32_t trains = 20;
  std::string device = "cuda", output;
};

/// One rank's inputs and outputs in memory that its kernels read.
class Tensors {
 public:
  Tensors(World& world, const Shape& shape) : accelerator_(world.accelerator()) {
    for (uint32_t set = 0; set < kSets; ++set) {
      const Workload made = make_workload(shape, world.rank(), set);
      inputs_.push_back(
          {.x = upload(made.x), .topk_idx = upload(made.topk_idx), .tokens = shape.tokens});
      weights_.push_back(upload(made.topk_weights));
    }
    out = reserve(size_t{shape.tokens} * shape.hidden * 2);
  }
  ~Tensors() {
    for (void* memory : owned_) accelerator_.free(memory);
  }
  Tensors(const Tensors&) = delete;
  LowLatencyInput input(uint32_t call, LowLatencyRows rows) const {
    LowLatencyInput input = inputs_[call % kSets];
    input.rows = rows;
    return input;
  }
  const float* weights(uint32_t call) const { return weights_[call % kSets]; }
  void* out;  ///< [tokens, hidden] bf16

  template <class T>
  std::vector<T> download(const void* from, size_t count, Stream stream) const {
    std::vector<T> to(count);
    accelerator_.copy(to.data(), from, count * sizeof(T), stream);
    const Event event = accelerator_.record(stream);
    accelerator_.wait_until(accelerator_.now() + std::chrono::seconds(30),
                            [&] { return accelerator_.done(event); });
    accelerator_.free_event(event);
    return to;
  }

 private:
  void* reserve(size_t bytes) { return owned_.emplace_back(accelerator_.allocate(bytes)); }
  template <class T>
  const T* upload(const std::vector<T>& from) {
    void* to = reserve(from.size() * sizeof(T));
    accelerator_.copy(to, from.data(), from.size() * sizeof(T), Stream{});
    return static_cast<const T*>(to);
  }
  Accelerator& accelerator_;
  std::vector<void*> owned_;
  std::vector<LowLatencyInput> inputs_;
  std::vector<const float*> weights_;
};

float value_of(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// Every row of every expert, in FP8, is its token within a rounding.
void check_rows(World& world, LowLatency& exchange, const Tensors& tensors, const Shape& shape,
                uint32_t set, Stream stream) {
  const LowLatencyReceived got =
      exchange.dispatch(tensors.input(set, LowLatencyRows::fp8), {.stream = stream.native});
  exchange.wait(stream.native);
  const size_t local = shape.experts / shape.ranks, slots = size_t{shape.ranks} * shape.tokens;
  const size_t groups = (shape.hidden + 127) / 128;
  const auto x = tensors.download<uint8_t>(got.x, local * slots * shape.hidden, stream);
  const auto scales = tensors.download<float>(got.scales, local * groups * slots, stream);
  const auto sources = tensors.download<int32_t>(got.source_token, local * slots, stream);
  const auto ranges = tensors.download<int32_t>(got.ranges, local * shape.ranks * 2, stream);
  for (uint32_t source = 0; source < shape.ranks; ++source) {
    const Workload sent = make_workload(shape, source, set);
    std::vector<uint32_t> next(local);
    for (size_t pick = 0; pick < sent.topk_idx.size(); ++pick) {
      const int64_t expert = sent.topk_idx[pick] - static_cast<int64_t>(world.rank() * local);
      if (expert < 0 || expert >= static_cast<int64_t>(local)) continue;
      const size_t slot =
          ranges[(expert * shape.ranks + source) * 2] + next[static_cast<size_t>(expert)]++;
      const size_t row = static_cast<size_t>(expert) * slots + slot, token = pick / shape.topk;
      if (sources[row] != static_cast<int32_t>(token))
        throw InternalError(fmt::format("slot {} holds token {} of rank {}, not {}", row,
                                        sources[row], source, token));
      for (uint32_t i = 0; i < shape.hidden; ++i) {
        const float scale = scales[(static_cast<size_t>(expert) * groups + i / 128) * slots + slot];
        const float seen = to_float(Float8E4M3{x[row * shape.hidden + i]}) * scale;
        const float wanted = value_of(sent.x[token * shape.hidden + i]);
        if (std::fabs(seen - wanted) > std::fabs(wanted) / 16 + scale * 0x1p-9f)
          throw InternalError(
              fmt::format("slot {} channel {} is {}, not {}", row, i, seen, wanted));
      }
    }
  }
}

/// What experts leave as it was comes home times the sum of its weights, within the two roundings.
void check_home(World& world, LowLatency& exchange, const Tensors& tensors, const Shape& shape,
                uint32_t set, Stream stream) {
  const LowLatencyCall call{.stream = stream.native};
  const LowLatencyReceived got = exchange.dispatch(tensors.input(set, LowLatencyRows::bf16), call);
  exchange.combine({.y = got.x, .weights = tensors.weights(set), .out = tensors.out}, got.handle,
                   call);
  exchange.wait(stream.native);
  const auto out =
      tensors.download<uint16_t>(tensors.out, size_t{shape.tokens} * shape.hidden, stream);
  const Workload mine = make_workload(shape, world.rank(), set);
  for (size_t at = 0; at < out.size(); ++at) {
    double weight = 0;
    for (uint32_t pick = 0; pick < shape.topk; ++pick)
      weight += mine.topk_weights[at / shape.hidden * shape.topk + pick];
    const double wanted = weight * value_of(mine.x[at]);
    if (std::fabs(value_of(out[at]) - wanted) > std::fabs(wanted) / 120 + 1e-30)
      throw InternalError(fmt::format("token {} channel {} is {}, not {}", at / shape.hidden,
                                      at % shape.hidden, value_of(out[at]), wanted));
  }
}

/// Device time in us of a call, in each of `trains` of them. Ranks start each train together.
template <class Body>
std::vector<double> time_trains(World& world, Stream stream, uint32_t trains, Body body) {
  Accelerator& accelerator = world.accelerator();
  const uint32_t pause_ns = accelerator.kind() == AcceleratorKind::gpu ? kPauseNs : 0;
  constexpr uint32_t kWarmUp = 2;
  std::vector<double> us;
  for (uint32_t train = 0; train < trains + kWarmUp; ++train) {
    world.barrier("bench: start of a train");
    launch(accelerator, pause_kernel, {.blocks = 1, .warps = 1, .cooperative = false}, stream,
           PauseParams{pause_ns});
    const Event begin = accelerator.record(stream);
    for (uint32_t call = 0; call < kTrain; ++call) body(call);
    const Event end = accelerator.record(stream);
    if (!accelerator.wait_until(accelerator.now() + std::chrono::seconds(30),
                                [&] { return accelerator.done(end); }))
      throw InternalError("a measured train did not end within 30 s");
    if (train >= kWarmUp) us.push_back(accelerator.elapsed_ms(begin, end) * 1e3 / kTrain);
    accelerator.free_event(begin);
    accelerator.free_event(end);
  }
  return us;
}

/// Of each train the slowest rank's time. Collective.
Spread over_ranks(World& world, const std::vector<double>& mine) {
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "bench: times");
  std::vector<double> slowest(mine.size());
  for (const auto& bytes : all)
    for (size_t train = 0; train < mine.size(); ++train) {
      double us;
      std::memcpy(&us, bytes.data() + train * sizeof us, sizeof us);
      slowest[train] = std::max(slowest[train], us);
    }
  return spread_of(slowest);
}

void measure(World& world, const Settings& settings, const Shape& shape, uint32_t sms,
             Stream stream, Report* report) {
  const Tensors tensors(world, shape);
  LowLatency exchange(world, {.experts = shape.experts,
                              .hidden = shape.hidden,
                              .topk = shape.topk,
                              .tokens_max = shape.tokens,
                              .sms = sms});
  for (uint32_t set = 0; set < kSets; ++set) {
    check_rows(world, exchange, tensors, shape, set, stream);
    check_home(world, exchange, tensors, shape, set, stream);
  }
  const double rows = static_cast<double>(busiest_remote_rows(shape, 0));
  const bool linked = settings.device == "cuda" && shape.ranks > 1;
  const auto add = [&](const char* name, double row_bytes, auto body) {
    const Spread ours = over_ranks(world, time_trains(world, stream, settings.trains, body));
    if (report)
      report->add({.name = name,
                   .gpus = settings.device == "cuda" ? shape.ranks : 0,
                   .ranks = shape.ranks,
                   .tokens = shape.tokens,
                   .hidden = shape.hidden,
                   .sms = sms,
                   .ours = ours,
                   .floor = linked ? rows * row_bytes / kLinkBytesPerUs : 0});
  };
  const LowLatencyCall call{.stream = stream.native}, half{.hook = true, .stream = stream.native};
  const auto dispatch = [&](uint32_t number, const LowLatencyCall& how) {
    return exchange.dispatch(tensors.input(number, LowLatencyRows::fp8), how);
  };
  // Any memory serves as y: what it holds does not change the time.
  const LowLatencyReceived first = dispatch(0, call);
  void* const y = exchange.combine_buffer(first.handle);
  const auto combine = [&](uint32_t number, const LowLatencyReceived& got,
                           const LowLatencyCall& how) {
    exchange.combine({.y = y, .weights = tensors.weights(number), .out = tensors.out}, got.handle,
                     how);
  };
  const double fp8_bytes = shape.hidden * (1 + 1.0 / 32), bf16_bytes = shape.hidden * 2.0;
  add("dispatch fp8", fp8_bytes, [&](uint32_t number) { dispatch(number, call); });
  add("dispatch fp8 and combine bf16", fp8_bytes + bf16_bytes,
      [&](uint32_t number) { combine(number, dispatch(number, call), call); });
  add("the same, sent and received apart", fp8_bytes + bf16_bytes, [&](uint32_t number) {
    const LowLatencyReceived got = dispatch(number, half);
    exchange.receive(got.handle, stream.native);
    combine(number, got, half);
    exchange.receive(got.handle, stream.native);
  });
  exchange.wait(stream.native);
  if (!exchange.masked().empty()) throw InternalError("a rank was masked while it was measured");
}

void run_rank(World& world, const Settings& settings, Report* report) {
  const Stream stream = world.accelerator().make_stream();
  for (const uint32_t tokens : settings.tokens)
    for (const uint32_t sms : settings.sms) {
      Shape shape = settings.shape;
      shape.tokens = tokens;
      measure(world, settings, shape, sms, stream, report);
    }
  world.accelerator().free_stream(stream);
}

void run(const Settings& settings) {
  uint64_t arena_bytes = size_t{16} << 20;
  for (const uint32_t tokens : settings.tokens)
    arena_bytes += settings.sms.size() * LowLatency::memory({.experts = settings.shape.experts,
                                                             .hidden = settings.shape.hidden,
                                                             .topk = settings.shape.topk,
                                                             .tokens_max = tokens},
                                                            settings.shape.ranks)
                                             .arena_bytes;
  auto worlds =
      World::in_process(settings.shape.ranks, settings.device, {.arena_bytes = arena_bytes});
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
  bool smoke = false;
  CLI::App app("Device time of low-latency dispatch and combine, checked first");
  app.add_option("--ranks", settings.shape.ranks, "ranks; on cuda a GPU each")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--tokens", settings.tokens, "tokens a rank, several to compare")->delimiter(',');
  app.add_option("--hidden", settings.shape.hidden, "elements a token");
  app.add_option("--topk", settings.shape.topk, "experts a token");
  app.add_option("--experts", settings.shape.experts, "experts in all");
  app.add_option("--sms", settings.sms, "multiprocessors a call, 0 for all; several to compare")
      ->delimiter(',');
  app.add_option("--trains", settings.trains, "measured trains of 20 calls")
      ->check(CLI::Range(1, 10000));
  app.add_option("--output", settings.output,
                 "a JSON file, such as bench/results/low_latency.json");
  app.add_flag("--smoke", smoke, "small numbers on the host, to see that it works");
  CLI11_PARSE(app, argc, argv);
  if (smoke) {
    settings.shape = {.ranks = 2, .tokens = 0, .hidden = 256, .topk = 2, .experts = 8};
    settings.device = "host";
    settings.tokens = {4, 16};
    settings.sms = {3};
    settings.trains = 2;
  }
  try {
    run(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
