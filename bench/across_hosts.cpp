// Measures throughput dispatch and combine between hosts: two ranks with a GPU each count as two
// hosts, so that the proxy and TCP lie between them. Results are checked bit for bit before
// anything is timed. Beside each time stands that of plain sockets which carry the same bytes, both
// ways at once, in the same run.
//
//   ./run bench across_hosts
//   ./run bench across_hosts --tokens 128,4096 --connections 2,4 --output
//   bench/results/across_hosts.json
//   ./run bench across_hosts --tune --tokens 4096   # finds the best rings, chunks and SMs
//   ./run bench across_hosts --one-gpu              # one rank of many, on one GPU
//   ./run bench across_hosts --smoke                # on the host, over the simulated network
//
// A time is that of a whole call between two events. Bytes count once: rows and what lies beside
// them, of the tokens that cross the link.
//
// With --one-gpu, one rank of 2, 4 or 8 hosts of 8 runs its real kernels with its rings in GPU
// memory, and a thread stands for a link of 50 GB/s each way and for the peers
// (across_hosts/one_gpu.hpp). The floor is what crosses that link, at its rate.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <cstring>
#include <string>

#include "bench/across_hosts/one_gpu.hpp"
#include "bench/across_hosts/tune.hpp"
#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/time_calls.hpp"
#include "bench/networks/raw_tcp.hpp"
#include "bench/throughput/check.hpp"
#include "tokenyard/expert_parallel.hpp"

namespace tokenyard::bench {
namespace {

constexpr uint32_t kRanks = 2;

struct Settings {
  std::vector<uint32_t> tokens{128, 1024, 4096}, sms{8}, connections{2};
  Shape shape{.ranks = kRanks, .tokens = 0, .hidden = 7168, .topk = 8, .experts = 256};
  uint32_t calls = 20, ring_rows = 0, chunk_rows = 0;
  bool tunes = false;
  std::string device = "cuda", output;
};

/// Sends and receives so many bytes at once, as a rank; returns the microseconds of both ranks.
double raw_exchange(RawTcp& raw, uint32_t rank, std::barrier<>& aligned,
                    std::span<const std::byte> out, std::span<std::byte> in) {
  aligned.arrive_and_wait();
  const auto begin = Clock::now();
  std::thread sender([&] { send_all(raw.ends[rank], out); });
  receive_all(raw.ends[rank], in);
  sender.join();
  aligned.arrive_and_wait();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

ExpertParallelOptions options_of(const Shape& shape, const RingOptions& options) {
  return {.experts = shape.experts,
          .hidden = shape.hidden,
          .topk = shape.topk,
          .tokens_max = shape.tokens,
          .sms = options.sms,
          .tuning = {.ring_rows = options.ring_rows, .chunk_rows = options.chunk_rows}};
}

/// Measures a shape on a rank.
class Measurement {
 public:
  Measurement(World& world, const Settings& settings, const Shape& shape, uint32_t connections,
              RawTcp& raw, std::barrier<>& aligned, Report* report)
      : world_(world),
        settings_(settings),
        shape_(shape),
        connections_(connections),
        raw_(raw),
        aligned_(aligned),
        report_(report),
        stream_(accelerator_of(world).make_stream()) {}
  ~Measurement() { accelerator_of(world_).free_stream(stream_); }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  void run(uint32_t sms) {
    Tensors tensors(world_, shape_, 0);
    ExpertParallel exchange(world_, options_of(shape_, {.sms = sms,
                                                        .ring_rows = settings_.ring_rows,
                                                        .chunk_rows = settings_.chunk_rows}));
    sms_ = exchange.sms();
    check(world_, exchange, tensors, shape_, 0, 1, stream_);
    const auto rows = static_cast<double>(busiest_remote_rows(shape_, 0, 0));
    const double bf16 = shape_.hidden * 2.0, beside = shape_.topk * 12.0 + 4;
    const double fp8 = shape_.hidden + shape_.hidden / 128 * 4.0;
    measure("dispatch bf16", rows * (bf16 + beside),
            [&](uint32_t call) { exchange.dispatch(tensors.input(call), stream_); });
    if (shape_.hidden % 128 == 0)
      measure("dispatch fp8", rows * (fp8 + beside),
              [&](uint32_t call) { exchange.dispatch(tensors.input_fp8(call, shape_), stream_); });
    const Received received = exchange.dispatch(tensors.input(0), stream_);
    measure("dispatch bf16 cached", rows * bf16, [&](uint32_t) {
      exchange.dispatch({.x = tensors.input(0).x}, *received.route, stream_);
    });
    const CombineBuffer y = exchange.combine_buffer(*received.route, DataType::bfloat16, stream_);
    accelerator_of(world_).copy(y.y.data, received.x.data, received.x.bytes(), stream_);
    measure("combine bf16", rows * bf16, [&](uint32_t) {
      exchange.combine({.y = y.y}, *received.route, {.x = tensors.out}, stream_);
    });
    exchange.wait(stream_);
  }

 private:
  void measure(const std::string& name, double bytes, const auto& body) {
    const Spread ours = over_ranks(world_, time_calls(world_, stream_, settings_.calls, 1, body));
    const std::vector<std::byte> out(static_cast<size_t>(bytes), std::byte{1});
    std::vector<std::byte> in(out.size());
    std::vector<double> theirs;
    for (uint32_t call = 0; call <= settings_.calls; ++call) {
      const double us = raw_exchange(raw_, world_.rank(), aligned_, out, in);
      if (call != 0) theirs.push_back(us);
    }
    if (in != out) throw InternalError("raw tcp: other bytes have arrived");
    if (report_ == nullptr) return;
    const bool on_gpu = settings_.device == "cuda";
    report_->add(
        {.name = fmt::format(
             "{} {}", name,
             on_gpu ? fmt::format("proxy/tcp, {} connections", connections_) : "simulated network"),
         .gpus = on_gpu ? shape_.ranks : 0,
         .ranks = shape_.ranks,
         .tokens = shape_.tokens,
         .hidden = shape_.hidden,
         .sms = sms_,
         .ours = ours,
         .floor = 0,
         .peer = PeerTimes{"raw tcp", spread_of(theirs)}});
  }

  World& world_;
  const Settings& settings_;
  const Shape shape_;
  const uint32_t connections_;
  RawTcp& raw_;
  std::barrier<>& aligned_;
  Report* const report_;
  const Stream stream_;
  uint32_t sms_ = 0;
};

/// Returns the time of a dispatch and a combine of BF16 rows on the slower rank.
double time_of(const std::vector<std::unique_ptr<World>>& worlds, const Settings& settings,
               const Shape& shape, const RingOptions& options) {
  double us = 0;
  on_each_rank(worlds, [&](World& world) {
    const Stream stream = accelerator_of(world).make_stream();
    {
      Tensors tensors(world, shape, 0);
      ExpertParallel exchange(world, options_of(shape, options));
      const Received received = exchange.dispatch(tensors.input(0), stream);
      const CombineBuffer y = exchange.combine_buffer(*received.route, DataType::bfloat16, stream);
      accelerator_of(world).copy(y.y.data, received.x.data, received.x.bytes(), stream);
      const auto median = [&](const auto& body) {
        return over_ranks(world, time_calls(world, stream, settings.calls, 1, body)).median;
      };
      const double dispatch =
          median([&](uint32_t call) { exchange.dispatch(tensors.input(call), stream); });
      const double combine = median([&](uint32_t) {
        exchange.combine({.y = y.y}, *received.route, {.x = tensors.out}, stream);
      });
      exchange.wait(stream);
      if (world.rank() == 0) us = dispatch + combine;
    }
    world.barrier("bench: a candidate is timed");
    accelerator_of(world).free_stream(stream);
  });
  return us;
}

/// Prints what the search tries, and the best options for each number of tokens.
void tune(const Settings& settings) {
  const uint32_t most = *std::max_element(settings.tokens.begin(), settings.tokens.end());
  WorldOptions options{
      .arena_bytes = (size_t{256} << 20) + size_t{8} * kRanks * most * settings.shape.hidden * 2,
      .hosts = kRanks};
  options.network.connections = settings.connections.front();
  const auto worlds = worlds_apart(kRanks, settings.device, options);
  const bool on_gpu = settings.device == "cuda";
  const RingCandidates candidates =
      on_gpu ? RingCandidates{.sms = {4, 6, 8, 12, 16, 24, 32},
                              .ring_rows = {32, 64, 128, 256},
                              .chunk_rows = {2, 4, 8, 16, 32}}
             : RingCandidates{.sms = {1, 2}, .ring_rows = {8, 32}, .chunk_rows = {1, 4}};
  for (const uint32_t tokens : settings.tokens) {
    Shape shape = settings.shape;
    shape.tokens = tokens;
    fmt::print("{} tokens per rank\n{:>6}{:>12}{:>12}{:>12}\n", tokens, "sms", "ring rows",
               "chunk rows", "us");
    const Tuned tuned = tune(settings.sms.front(), candidates, [&](const RingOptions& tried) {
      const double us = time_of(worlds, settings, shape, tried);
      const auto shown = [](uint32_t value) {
        return value == 0 ? std::string("chosen") : std::to_string(value);
      };
      fmt::print("{:>6}{:>12}{:>12}{:>12.1f}\n", tried.sms, shown(tried.ring_rows),
                 shown(tried.chunk_rows), us);
      std::fflush(stdout);
      return us;
    });
    fmt::print("best: {}\n{:.1f} us for a dispatch and a combine, {:.1f} us as chosen\n",
               as_code(tuned.best), tuned.us, tuned.chosen_us);
  }
}

void run(const Settings& settings) {
  if (settings.tunes) return tune(settings);
  const uint32_t most = *std::max_element(settings.tokens.begin(), settings.tokens.end());
  require_equal_shares(settings.shape.experts, kRanks);
  const size_t row_bytes = size_t{kRanks} * most * settings.shape.hidden * 2;
  std::unique_ptr<Report> report;
  for (const uint32_t connections : settings.connections) {
    WorldOptions options{.arena_bytes = (size_t{64} << 20) + 8 * row_bytes, .hosts = kRanks};
    options.network.connections = connections;
    const auto worlds = worlds_apart(kRanks, settings.device, options);
    if (!report) report = std::make_unique<Report>("across_hosts", *worlds[0]);
    RawTcp raw(connections);
    std::barrier<> aligned(kRanks);
    for (const uint32_t tokens : settings.tokens)
      for (const uint32_t sms : settings.sms) {
        Shape shape = settings.shape;
        shape.tokens = tokens;
        on_each_rank(worlds, [&](World& world) {
          Measurement(world, settings, shape, connections, raw, aligned,
                      world.rank() == 0 ? report.get() : nullptr)
              .run(sms);
        });
      }
    report->finish(settings.output);
  }
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  OneGpuSettings one_gpu;
  bool on_one_gpu = false;
  bool smoke = asks_for_smoke(argc, argv);
  if (smoke) {
    one_gpu.hosts = {3};
    one_gpu.locals = 2;
    one_gpu.calls = 2;
    settings.shape.hidden = 256;
    settings.shape.topk = 2;
    settings.shape.experts = 8;
    settings.tokens = {64};
    settings.sms = {2};
    settings.calls = 2;
    settings.device = "host";
  }
  CLI::App app("Checks dispatch and combine between two hosts, then measures their device time",
               "./run bench across_hosts");
  app.option_defaults()->always_capture_default();
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_flag("--one-gpu", on_one_gpu, "one rank of many on one GPU, over a modelled link");
  app.add_option("--hosts", one_gpu.hosts, "with --one-gpu: hosts of 8 ranks; several to compare")
      ->delimiter(',')
      ->check(in_range(2, 32));
  app.add_option("--rate", one_gpu.gb_s, "with --one-gpu: GB/s of the link; 0: unpaced");
  app.add_option("--credit-us", one_gpu.credit_us,
                 "with --one-gpu: from a slot's end on the link to its credit");
  app.add_flag("--pinned", one_gpu.pinned, "with --one-gpu: rings in pinned memory of the host");
  app.add_option("--movers", one_gpu.movers, "with --one-gpu: warps per block; 0: chosen");
  auto* const tokens = app.add_option("--tokens", settings.tokens,
                                      "tokens per rank; several to compare; 4096 with --one-gpu")
                           ->delimiter(',')
                           ->check(in_range(1, 1 << 20));
  app.add_option("--hidden", settings.shape.hidden, "elements per token")
      ->check(in_range(1, 1 << 20));
  app.add_option("--topk", settings.shape.topk, "experts per token")->check(in_range(1, 1 << 20));
  app.add_option("--experts", settings.shape.experts, "experts of all ranks together")
      ->check(in_range(1, 1 << 20));
  auto* const sms =
      app.add_option("--sms", settings.sms,
                     "multiprocessors per call; several to compare; those of the goals with "
                     "--one-gpu")
          ->delimiter(',')
          ->check(in_range(0, 1 << 20));
  app.add_option("--connections", settings.connections, "sockets between them; several to compare")
      ->delimiter(',')
      ->check(in_range(1, 6));
  app.add_option("--calls", settings.calls, "measured calls")->check(in_range(1, 10000));
  app.add_option("--ring-rows", settings.ring_rows, "BF16 rows per ring; 0: chosen")
      ->check(in_range(0, 65536));
  app.add_option("--chunk-rows", settings.chunk_rows,
                 "rows per put and per credit, at least; 0: chosen")
      ->check(in_range(0, 65536));
  app.add_flag("--tune", settings.tunes, "search the fastest SMs, ring rows and chunk rows");
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/across_hosts.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  if (!on_one_gpu) return exit_of_run([&] { run(settings); });
  if (smoke || tokens->count() != 0) one_gpu.tokens = settings.tokens;
  if (smoke || sms->count() != 0) one_gpu.sms = settings.sms;
  one_gpu.ring_rows = settings.ring_rows;
  one_gpu.hidden = settings.shape.hidden;
  one_gpu.topk = settings.shape.topk;
  one_gpu.experts = smoke ? 12 : settings.shape.experts;
  if (!smoke) one_gpu.calls = settings.calls;
  one_gpu.device = settings.device;
  one_gpu.output = settings.output;
  return exit_of_run([&] { run_one_gpu(one_gpu); });
}
