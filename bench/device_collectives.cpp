// Measures collectives on device tensors, one thread per rank. Results are checked before anything
// is timed.
//
//   ./run bench device_collectives                         # a GPU per rank, trains in CUDA graphs
//   ./run bench device_collectives --operations all_reduce --bytes 4096,1048576
//   ./run bench device_collectives --nccl libnccl.so.2     # NCCL beside ours in the same run
//   ./run bench device_collectives --shared                # ranks on one GPU, launched one by one
//   ./run bench device_collectives --keep-inputs           # in place, beside calls that keep none
//   ./run bench device_collectives --device host --smoke   # a smoke test
//
// Calls are made in trains behind a pause; the time is a train's between events, per call. Ranks
// that share a GPU are launched together by the host, so their trains cannot be captured: their
// times are those of launches and of the GPU's own memory, and say nothing about links. Calls that
// keep their input cannot be captured either.
//
// `bytes` is the size of the whole tensor: of the input, or of the result if only that has all
// parts. The floor is the bytes that a rank must send over the link's measured rate (347 GB/s by
// stores, H200 NVLink), without latency.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <optional>

#include "bench/device_collectives/nccl_peer.hpp"
#include "bench/harness/command_line.hpp"
#include "bench/harness/device_memory.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/harness/trains.hpp"
#include "collectives/device/host/device_collectives.hpp"
#include "device/accelerator.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::bench {
namespace {

using device_collectives::Call;
using device_collectives::DeviceCollectives;
using device_collectives::Options;
using device_collectives::Protocol;

constexpr double kLinkBytesPerUs = 347e3;

struct Settings {
  uint32_t ranks = 2;
  std::vector<std::string> operations{"barrier",    "all_reduce",     "all_gather",
                                      "all_to_all", "reduce_scatter", "broadcast"};
  std::vector<uint64_t> bytes{8, 4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<uint32_t> sms{0};
  uint32_t trains = 20, slot_bytes = Options{}.slot_bytes, chunk_bytes = Options{}.chunk_bytes;
  uint32_t packet_bytes = Options{}.packet_bytes;
  bool shared = false;
  bool keep_inputs = false;  ///< all_reduce in place, beside one that keeps no input
  std::string protocol = "automatic", type = "fp32", device = "cuda", nccl, output;

  DataType data_type() const { return type == "fp32" ? DataType::float32 : DataType::bfloat16; }
  Protocol of() const {
    return protocol == "slots"     ? Protocol::slots
           : protocol == "packets" ? Protocol::packets
           : protocol == "rings"   ? Protocol::rings
           : protocol == "direct"  ? Protocol::direct
                                   : Protocol::automatic;
  }
  Options options() const {
    return {.slot_bytes = slot_bytes,
            .packet_bytes = packet_bytes,
            .chunk_bytes = chunk_bytes,
            .keep_inputs = keep_inputs};
  }
  Options options_of_peer() const {
    Options options = this->options();
    options.keep_inputs = false;
    return options;
  }
  bool one_by_one() const { return shared || keep_inputs; }
  std::string how() const { return keep_inputs ? " in place" : shared ? "" : " graph"; }
};

/// One rank's tensors for one size: small whole numbers, whose sums are exact in every type.
class Tensors {
 public:
  /// Protocol::direct needs tensors of the arena. `in_place`: the result is the input.
  Tensors(World& world, DataType type, uint64_t bytes, bool in_arena, bool in_place)
      : world_(world), type_(type), count_(bytes / bytes_of(type)), memory_(accelerator_of(world)) {
    const std::vector<uint8_t> numbers = pattern(world.rank());
    input_ = const_cast<uint8_t*>(memory_.upload(numbers));
    if (in_place) {
      result_ = input_;
      return;
    }
    if (!in_arena) {
      result_ = static_cast<uint8_t*>(memory_.reserve(numbers.size() + 16));
      return;
    }
    const uint64_t size = (numbers.size() + 255) / 256 * 256;
    lent_ = arena_of(world).allocate(2 * size, Stream{});
    auto* const begin = reinterpret_cast<uint8_t*>(lent_.data());
    accelerator_of(world).copy(begin, input_, numbers.size(), Stream{});
    input_ = begin;
    result_ = begin + size;
    memory_.download<uint8_t>(input_, 1, Stream{});  // Waits for the copy.
  }

  void start(DeviceCollectives& collectives, const std::string& operation, const Call& call) const {
    const uint64_t part = count_ / world_.size();
    if (operation == "barrier")
      collectives.barrier(call);
    else if (operation == "all_reduce")
      collectives.all_reduce(view(input_, count_), view(result_, count_), ReduceOp::sum, call);
    else if (operation == "all_gather")
      collectives.all_gather(view(input_, part), view(result_, part * world_.size()), call);
    else if (operation == "reduce_scatter")
      collectives.reduce_scatter(view(input_, part * world_.size()), view(result_, part),
                                 ReduceOp::sum, call);
    else if (operation == "all_to_all")
      collectives.all_to_all(view(input_, part * world_.size()),
                             view(result_, part * world_.size()), call);
    else
      collectives.broadcast(view(world_.rank() == 0 ? input_ : result_, count_), 0, call);
  }

  void start(NcclPeer& nccl, const std::string& operation, Stream stream) const {
    const bool sends = operation != "broadcast" || world_.rank() == 0;
    const uint8_t* const input = sends ? input_ : result_;
    uint8_t* const result = operation == "broadcast" && sends ? input_ : result_;
    nccl.start(operation, input, result, count_, type_, stream);
  }

  /// Throws unless the result is that of a call that has ended.
  void check(const std::string& operation, Stream stream) const {
    const uint64_t part = count_ / world_.size();
    const uint32_t ranks = world_.size(), rank = world_.rank();
    const std::vector<uint8_t> seen =
        memory_.download<uint8_t>(result_, count_ * bytes_of(type_), stream);
    const auto require = [&](uint64_t at, float expected) {
      if (number(seen, at) == expected) return;
      throw InternalError(fmt::format("{} of {} elements: element {} is {} instead of {}",
                                      operation, count_, at, number(seen, at), expected));
    };
    const auto sum = [&](uint64_t at) {
      float all = 0;
      for (uint32_t source = 0; source < ranks; ++source) all += value(source, at);
      return all;
    };
    if (operation == "all_reduce")
      for (uint64_t i = 0; i < count_; ++i) require(i, sum(i));
    else if (operation == "reduce_scatter")
      for (uint64_t i = 0; i < part; ++i) require(i, sum(rank * part + i));
    else if (operation == "broadcast" && rank != 0)
      for (uint64_t i = 0; i < count_; ++i) require(i, value(0, i));
    else if (operation == "all_gather" || operation == "all_to_all")
      for (uint64_t i = 0; i < part * ranks; ++i)
        require(i, value(static_cast<uint32_t>(i / part),
                         operation == "all_gather" ? i % part : rank * part + i % part));
  }

 private:
  static float value(uint32_t rank, uint64_t at) {
    return static_cast<float>((at * 7 + rank * 3 + at / 64) % 13);
  }
  float number(const std::vector<uint8_t>& bytes, uint64_t at) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + at * bytes_of(type_), bytes_of(type_));
    float number;
    if (type_ == DataType::bfloat16) bits <<= 16;
    std::memcpy(&number, &bits, 4);
    return number;
  }
  std::vector<uint8_t> pattern(uint32_t rank) const {
    std::vector<uint8_t> bytes(count_ * bytes_of(type_));
    for (uint64_t i = 0; i < count_; ++i) {
      const float number = value(rank, i);
      uint32_t bits;
      std::memcpy(&bits, &number, 4);
      if (type_ == DataType::bfloat16) bits >>= 16;  // Exact: few bits are set.
      std::memcpy(bytes.data() + i * bytes_of(type_), &bits, bytes_of(type_));
    }
    return bytes;
  }
  TensorView view(uint8_t* at, uint64_t count) const { return {at, type_, {count}}; }

  World& world_;
  const DataType type_;
  const uint64_t count_;
  DeviceMemory memory_;
  ArenaBlock lent_;
  uint8_t *input_, *result_;
};

/// Returns the bytes that a rank sends over its link.
double sent_bytes(const std::string& operation, double bytes, double ranks) {
  if (operation == "barrier") return 0;
  if (operation == "all_reduce") return 2 * (ranks - 1) / ranks * bytes;
  if (operation == "broadcast") return bytes;
  return (ranks - 1) / ranks * bytes;
}

std::string text_of_bytes(uint64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{} MB", bytes >> 20);
  if (bytes >= 1 << 10) return fmt::format("{} KB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

/// Returns the time of a call per train, in us.
std::vector<double> time_trains(World& world, const Settings& settings, Stream stream,
                                const std::function<void()>& call) {
  std::vector<double> times;
  const auto enqueue = [&] {
    for (uint32_t i = 0; i < kTrain; ++i) call();
  };
  const Launched how = settings.one_by_one() ? Launched::one_by_one : Launched::as_a_graph;
  run_trains(
      world, stream, settings.trains, how, enqueue, [] {}, [&](double us) { times.push_back(us); });
  return times;
}

/// Returns NCCL's times for the same tensors, checked as ours are.
PeerTimes time_nccl(World& world, NcclPeer& nccl, const Settings& settings, const Tensors& tensors,
                    const std::string& operation, Stream stream) {
  const auto start = [&] { tensors.start(nccl, operation, stream); };
  start();
  tensors.check(operation, stream);
  const Spread times = over_ranks(world, time_trains(world, settings, stream, start));
  tensors.check(operation, stream);
  return {"nccl", times};
}

/// Returns the times of the same calls of collectives that keep no inputs.
PeerTimes time_plain(World& world, DeviceCollectives& plain, const Settings& settings,
                     const Tensors& tensors, const std::string& operation, const Call& call) {
  const Spread times = over_ranks(world, time_trains(world, settings, call.stream, [&] {
                                    tensors.start(plain, operation, call);
                                  }));
  plain.wait(call.stream);
  return {"without keep_inputs", times};
}

void run_rank(World& world, const Settings& settings, Report* report) {
  const Stream stream = accelerator_of(world).make_stream();
  {
    DeviceCollectives collectives(world, settings.options());
    std::optional<DeviceCollectives> plain;
    if (settings.keep_inputs) plain.emplace(world, settings.options_of_peer());
    std::optional<NcclPeer> nccl;
    if (!settings.nccl.empty()) nccl.emplace(world, settings.nccl);
    for (const std::string& operation : settings.operations)
      for (const uint64_t bytes : settings.bytes) {
        if (operation == "barrier" && bytes != settings.bytes.front()) continue;
        if (bytes < world.size() * bytes_of(settings.data_type()) && operation != "barrier")
          continue;
        const Tensors tensors(world, settings.data_type(), bytes, settings.of() == Protocol::direct,
                              settings.keep_inputs);
        for (const uint32_t sms : settings.sms) {
          const Call call{.stream = stream, .protocol = settings.of(), .sms = sms};
          const auto start = [&] { tensors.start(collectives, operation, call); };
          start();
          collectives.wait(stream);
          tensors.check(operation, stream);
          const Spread ours = over_ranks(world, time_trains(world, settings, stream, start));
          collectives.wait(stream);
          // Each call in place begins with the sum before.
          if (!settings.keep_inputs) tensors.check(operation, stream);
          std::optional<PeerTimes> peer;
          if (plain) peer = time_plain(world, *plain, settings, tensors, operation, call);
          if (nccl) peer = time_nccl(world, *nccl, settings, tensors, operation, stream);
          if (report == nullptr) continue;
          const bool on_gpus = settings.device == "cuda";
          const bool linked = on_gpus && !settings.shared;
          report->add(
              {.name = operation == "barrier"
                           ? operation + settings.how()
                           : fmt::format("{} {} {}{}", operation, text_of_bytes(bytes),
                                         settings.type, settings.how()),
               .gpus = on_gpus ? (settings.shared ? 1 : settings.ranks) : 0,
               .ranks = settings.ranks,
               .tokens = 0,
               .hidden = 0,
               .sms = sms,
               .ours = ours,
               .floor = linked ? sent_bytes(operation, static_cast<double>(bytes), settings.ranks) /
                                     kLinkBytesPerUs
                               : 0,
               .peer = peer});
        }
      }
    collectives.close();
    if (plain) plain->close();
  }
  accelerator_of(world).free_stream(stream);
}

void run(const Settings& settings) {
  const uint64_t most = *std::max_element(settings.bytes.begin(), settings.bytes.end());
  const WorldOptions options{
      .arena_bytes = DeviceCollectives::arena_bytes(settings.options(), settings.ranks) *
                         (settings.keep_inputs ? 2 : 1) +
                     (settings.of() == Protocol::direct ? 2 * most : 0) + (size_t{4} << 20)};
  auto worlds = settings.shared ? worlds_on(settings.ranks, settings.device, options)
                                : worlds_apart(settings.ranks, settings.device, options);
  Report report("device_collectives", *worlds[0]);
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
    settings.device = "host";
    settings.bytes = {8, 4096, 320 << 10};
    settings.trains = 1;
  }
  CLI::App app("Checks collectives on device tensors, then measures their device time",
               "./run bench device_collectives");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", settings.ranks, "ranks; on cuda one GPU each, unless --shared")
      ->check(in_range(1, 64));
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--operations", settings.operations, "operations; several to compare")
      ->delimiter(',')
      ->check(CLI::IsMember(
          {"barrier", "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast"}));
  app.add_option("--bytes", settings.bytes, "bytes of the whole tensor; several to compare")
      ->delimiter(',')
      ->check(in_range(1, 1 << 30));
  app.add_option("--type", settings.type, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--protocol", settings.protocol,
                 "automatic, slots, packets, rings, or direct: tensors of the arena")
      ->check(CLI::IsMember({"automatic", "slots", "packets", "rings", "direct"}));
  app.add_option("--slot-bytes", settings.slot_bytes, "largest message of slots")
      ->check(in_range(8, 64 << 20));
  app.add_option("--packet-bytes", settings.packet_bytes, "largest message of packets; 0: chosen");
  app.add_option("--chunk-bytes", settings.chunk_bytes, "largest chunk of rings and direct stores")
      ->check(in_range(16, 1 << 20));
  app.add_option("--sms", settings.sms, "multiprocessors per call, 0: chosen; several to compare")
      ->delimiter(',')
      ->check(in_range(0, 256));
  app.add_option("--trains", settings.trains, "measured trains of 20 calls")
      ->check(in_range(1, 10000));
  app.add_option("--nccl", settings.nccl,
                 "measure NCCL beside ours: its library, such as libnccl.so.2");
  app.add_flag("--shared", settings.shared, "all ranks on one GPU, launched one by one");
  app.add_flag("--keep-inputs", settings.keep_inputs,
               "all_reduce in place that keeps its input, beside one that does not; one by one")
      ->excludes("--nccl");
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/cuda_collectives.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, argc, argv)) return *status;
  if (settings.keep_inputs) settings.operations = {"all_reduce"};
  return exit_of_run([&] { run(settings); });
}
