// Measures collectives on device tensors between hosts: two ranks with a GPU each count as two
// hosts, so that the proxy and TCP lie between them. Results are checked before anything is timed.
// Beside each time stands that of plain sockets which carry the same bytes, both ways at once where
// the operation does, in the same run.
//
//   ./run bench collectives_across_hosts
//   ./run bench collectives_across_hosts --bytes 8,67108864 --connections 2,4
//   ./run bench collectives_across_hosts --smoke      # on the host, over the simulated network
//
// A time is that of a call between two events, in trains of several calls for few bytes. `bytes` is
// the size of the whole tensor: of the input, or of the result if only that has all parts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <string>

#include "bench/harness/command_line.hpp"
#include "bench/harness/device_memory.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/time_calls.hpp"
#include "bench/networks/raw_tcp.hpp"
#include "collectives/device/host/device_collectives.hpp"

namespace tokenyard::bench {
namespace {

using device_collectives::Call;
using device_collectives::DeviceCollectives;
using device_collectives::Options;

constexpr uint32_t kRanks = 2;

struct Settings {
  std::vector<std::string> operations{"barrier",    "all_reduce",     "all_gather",
                                      "all_to_all", "reduce_scatter", "broadcast"};
  std::vector<uint64_t> bytes{8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
  std::vector<uint32_t> connections{2};
  uint32_t calls = 20, queues = 4, chunk_bytes = Options{}.chunk_bytes, sms = 0;
  std::string device = "cuda", output;
};

/// The bytes that a rank sends in an operation.
uint64_t sent(const std::string& operation, uint64_t bytes, uint32_t rank) {
  if (operation == "barrier") return 8;
  if (operation == "all_reduce") return bytes;
  if (operation == "broadcast") return rank == 0 ? bytes : 0;
  return bytes / kRanks;
}

/// Sends and receives, as a rank, in turns of both; returns the microseconds of a turn.
double raw_exchange(RawTcp& raw, uint32_t rank, std::barrier<>& aligned, uint32_t turns,
                    std::span<const std::byte> out, std::span<std::byte> in) {
  constexpr size_t kFew = 64 << 10;  // Sockets hold them.
  aligned.arrive_and_wait();
  const auto begin = Clock::now();
  for (uint32_t turn = 0; turn < turns; ++turn) {
    if (out.size() <= kFew) {
      send_all(raw.ends[rank], out);
      receive_all(raw.ends[rank], in);
      continue;
    }
    std::thread sender([&] { send_all(raw.ends[rank], out); });
    receive_all(raw.ends[rank], in);
    sender.join();
  }
  aligned.arrive_and_wait();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / turns;
}

/// A rank's tensors of float32: small whole numbers, whose sums are exact.
class Tensors {
 public:
  Tensors(World& world, uint64_t bytes)
      : world_(world),
        count_(std::max<uint64_t>(bytes / sizeof(float), kRanks)),
        memory_(accelerator_of(world)),
        input_(memory_.upload(numbers(world.rank()))),
        result_(memory_.reserve(count_ * sizeof(float))) {
    memory_.download<float>(input_, 1, Stream{});  // Waits for the copy.
  }

  void start(DeviceCollectives& collectives, const std::string& operation, const Call& call) const {
    const uint64_t part = count_ / kRanks;
    if (operation == "barrier")
      collectives.barrier(call);
    else if (operation == "all_reduce")
      collectives.all_reduce(view(input_, count_), view(result_, count_), ReduceOp::sum, call);
    else if (operation == "all_gather")
      collectives.all_gather(view(input_, part), view(result_, part * kRanks), call);
    else if (operation == "reduce_scatter")
      collectives.reduce_scatter(view(input_, part * kRanks), view(result_, part), ReduceOp::sum,
                                 call);
    else if (operation == "all_to_all")
      collectives.all_to_all(view(input_, part * kRanks), view(result_, part * kRanks), call);
    else
      collectives.broadcast(view(world_.rank() == 0 ? input_ : result_, count_), 0, call);
  }

  /// Throws unless the result is that of a call that has ended.
  void check(const std::string& operation, Stream stream) const {
    const uint64_t part = count_ / kRanks, rank = world_.rank();
    const std::vector<float> seen = memory_.download<float>(result_, count_, stream);
    const auto sum = [](uint64_t at) { return value(0, at) + value(1, at); };
    const auto require = [&](uint64_t at, float expected) {
      if (seen[at] != expected)
        throw InternalError(fmt::format("{} of {} elements: element {} is {} instead of {}",
                                        operation, count_, at, seen[at], expected));
    };
    if (operation == "all_reduce")
      for (uint64_t i = 0; i < count_; ++i) require(i, sum(i));
    else if (operation == "reduce_scatter")
      for (uint64_t i = 0; i < part; ++i) require(i, sum(rank * part + i));
    else if (operation == "broadcast" && rank != 0)
      for (uint64_t i = 0; i < count_; ++i) require(i, value(0, i));
    else if (operation == "all_gather" || operation == "all_to_all")
      for (uint64_t i = 0; i < part * kRanks; ++i)
        require(i, value(i / part, operation == "all_gather" ? i % part : rank * part + i % part));
  }

 private:
  static float value(uint64_t rank, uint64_t at) {
    return static_cast<float>((at * 7 + rank * 3 + at / 64) % 13);
  }
  std::vector<float> numbers(uint64_t rank) const {
    std::vector<float> all(count_);
    for (uint64_t i = 0; i < count_; ++i) all[i] = value(rank, i);
    return all;
  }
  static TensorView view(const void* at, uint64_t count) {
    return {const_cast<void*>(at), DataType::float32, {count}};
  }

  World& world_;
  const uint64_t count_;
  DeviceMemory memory_;
  const float* const input_;
  void* const result_;
};

std::string text_of(uint64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{} MB", bytes >> 20);
  if (bytes >= 1 << 10) return fmt::format("{} KB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

void measure(World& world, const Settings& settings, uint32_t connections, RawTcp& raw,
             std::barrier<>& aligned, Report* report) {
  const uint32_t rank = world.rank();
  const Stream stream = accelerator_of(world).make_stream();
  DeviceCollectives collectives(world, {.sms = settings.sms, .chunk_bytes = settings.chunk_bytes});
  const Call call{.stream = stream};
  for (const uint64_t bytes : settings.bytes) {
    const Tensors tensors(world, bytes);
    for (const std::string& operation : settings.operations) {
      if (operation == "barrier" && bytes != settings.bytes[0]) continue;
      for (int round = 0; round < 2; ++round) tensors.start(collectives, operation, call);
      collectives.wait(stream);
      tensors.check(operation, stream);
      const uint32_t together = bytes <= 65536 ? 20 : 2;
      const Spread ours = over_ranks(
          world, time_calls(world, stream, settings.calls, together,
                            [&](uint32_t) { tensors.start(collectives, operation, call); }));
      collectives.wait(stream);
      tensors.check(operation, stream);
      const std::vector<std::byte> out(sent(operation, bytes, rank), std::byte{1});
      std::vector<std::byte> in(sent(operation, bytes, 1 - rank));
      std::vector<double> theirs;
      for (uint32_t turn = 0; turn <= settings.calls; ++turn) {
        const double us = raw_exchange(raw, rank, aligned, together, out, in);
        if (turn != 0) theirs.push_back(us);
      }
      if (report == nullptr) continue;
      const bool on_gpu = settings.device == "cuda";
      report->add(
          {.name = fmt::format(
               "{} {}",
               operation == "barrier" ? operation : operation + " " + text_of(bytes) + " fp32",
               on_gpu ? fmt::format("proxy/tcp, {} connections", connections)
                      : "simulated network"),
           .gpus = on_gpu ? kRanks : 0,
           .ranks = kRanks,
           .tokens = 0,
           .hidden = 0,
           .sms = settings.sms,
           .ours = ours,
           .floor = 0,
           .peer = PeerTimes{"raw tcp", spread_of(theirs)}});
    }
  }
  collectives.close();
  accelerator_of(world).free_stream(stream);
}

void run(const Settings& settings) {
  std::unique_ptr<Report> report;
  for (const uint32_t connections : settings.connections) {
    WorldOptions options{.arena_bytes = size_t{128} << 20, .hosts = kRanks};
    options.network.connections = connections;
    options.network.queues = settings.queues;
    const auto worlds = worlds_apart(kRanks, settings.device, options);
    if (!report) report = std::make_unique<Report>("collectives_across_hosts", *worlds[0]);
    RawTcp raw(connections);
    std::barrier<> aligned(kRanks);
    on_each_rank(worlds, [&](World& world) {
      measure(world, settings, connections, raw, aligned,
              world.rank() == 0 ? report.get() : nullptr);
    });
  }
  report->finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int argc, char** argv) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(argc, argv);
  if (smoke) {
    settings.bytes = {8, 65536};
    settings.calls = 2;
    settings.device = "host";
  }
  CLI::App app("Checks collectives on device tensors between two hosts, then measures their time",
               "./run bench collectives_across_hosts");
  app.option_defaults()->always_capture_default();
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--operations", settings.operations, "several to compare")->delimiter(',');
  app.add_option("--bytes", settings.bytes, "of the whole tensor; several to compare")
      ->delimiter(',')
      ->check(in_range(8, 1 << 30));
  app.add_option("--connections", settings.connections, "sockets between them; several to compare")
      ->delimiter(',')
      ->check(in_range(1, 6));
  app.add_option("--queues", settings.queues, "per peer; collectives take half of them")
      ->check(in_range(1, 16));
  app.add_option("--chunk-bytes", settings.chunk_bytes, "of the collectives' options")
      ->check(in_range(16, 1 << 20));
  app.add_option("--sms", settings.sms, "multiprocessors per call; 0: chosen")
      ->check(in_range(0, 256));
  app.add_option("--calls", settings.calls, "measured calls")->check(in_range(1, 10000));
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/collectives_across_hosts.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  return exit_of_run([&] { run(settings); });
}
