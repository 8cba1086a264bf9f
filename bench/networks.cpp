// Measures networks between hosts: puts and signals of a proxy over TCP, beside plain sockets that
// receive into regions of the same size, in the same run. Both carry the same bytes over as many
// connections of this host's loopback. Kernels run on the host or, with --device cuda, on one GPU
// or two; then also what a GPU and its host move through pinned memory, beside copy engines.
//
//   ./run bench networks
//   ./run bench networks --device cuda --output bench/results/networks.json
//   ./run bench networks --paths 1,2,4 --bytes 65536,67108864
//   ./run bench networks --smoke
//
// A time is from the first rank's post to the answer of the second, whose kernel (or thread) sees
// all bytes before it answers. Each size's bytes are compared once before they are timed. On
// machines with 8 cores or more, all waits poll without pause; on others, a kernel waits as kernels
// do, since the proxies need the cores.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <cstring>
#include <thread>

#include "bench/harness/command_line.hpp"
#include "bench/harness/each_rank.hpp"
#include "bench/harness/report.hpp"
#include "bench/networks/network_kernels.hpp"
#include "bench/networks/raw_tcp.hpp"
#include "device/device_memory.hpp"
#include "fabric/gather.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/network/network_memory.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::bench {
namespace {

struct Settings {
  std::vector<uint32_t> paths{1, 2, 4};
  std::vector<uint64_t> bytes{64 << 10, 1 << 20, 64 << 20};
  uint32_t repetitions = 20;
  std::string device = "host", output;
  bool on_gpu() const { return device == "cuda"; }
  std::string kernel() const { return on_gpu() ? "GPU" : "host"; }
};

const std::array<std::string, 1> kPhases = {"bench: network"};

void finish(Accelerator& gpu, Stream stream = {}) {
  const Event end = gpu.record(stream);
  const bool ended =
      gpu.wait_until(gpu.now() + std::chrono::seconds(60), [&] { return gpu.done(end); });
  gpu.free_event(end);
  if (!ended) throw InternalError("a measured kernel did not end within 60 s");
}

/// Memory that host and kernels use.
template <class T>
class SharedArray {
 public:
  SharedArray(Accelerator& gpu, size_t count)
      : memory_(gpu, count * sizeof(T), tokenyard::DeviceMemory::Kind::shared) {}
  T* data() const { return memory_.as<T>(); }

 private:
  const tokenyard::DeviceMemory memory_;
};

/// One rank's end, with memory that holds a source and a target.
class End {
 public:
  static constexpr uint32_t kTurnsMax = 1000;

  End(World& world, uint64_t bytes, bool on_gpu)
      : world_(world),
        gpu_(accelerator_of(world)),
        network_(*network_of(world)),
        record_(gpu_, abort_flag_of(world)),
        on_gpu_(on_gpu),
        bytes_(bytes),
        memory_(world, 2 * bytes + 64),
        // Keeps the proxy awake, as exchanges do.
        queues_(network_.claim_queues(1)),
        took_ns_(gpu_, kTurnsMax) {
    std::memset(memory_.data(), 0, memory_.bytes());
    targets_ = gather(world, memory_.target(), "bench: targets");
  }
  ~End() {
    memory_.give_back();
    network_.give_back_queues(queues_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  std::span<std::byte> source() { return {memory_.data(), bytes_}; }
  std::span<std::byte> target() { return {memory_.data() + bytes_, bytes_}; }

  /// Returns the microseconds of each turn; of the first rank, another's are 0.
  std::vector<double> ping(uint32_t turns, uint64_t bytes) {
    const uint32_t peer = 1 - world_.rank();
    const bool first = world_.rank() == 0;
    const NetworkTarget there = targets_[peer];
    world_.barrier("bench: ping");
    launch(gpu_, ping_kernel, {}, Stream{},
           PingParams{.wait_context = record_.wait_context(std::chrono::seconds(60)),
                      .queues = network_.queues(),
                      .peer = peer,
                      .queue = queues_[0],
                      .first = first,
                      .spins = on_gpu_ || std::thread::hardware_concurrency() >= 8,
                      .turns = turns,
                      .target = there + bytes_,
                      .flag = there + 2 * bytes_,
                      // The answer to a put is a signal.
                      .source = {.key = memory_.target().key,
                                 .bytes = static_cast<uint32_t>(first       ? bytes
                                                                : bytes > 8 ? 0
                                                                            : bytes),
                                 .from = memory_.data()},
                      .word = reinterpret_cast<uint64_t*>(memory_.data() + 2 * bytes_),
                      .seen = seen_,
                      .took_ns = took_ns_.data()});
    finish(gpu_);
    record_.check(kPhases);
    seen_ += turns;
    std::vector<double> took_us;
    for (uint32_t turn = 0; turn < turns; ++turn)
      took_us.push_back(static_cast<double>(took_ns_.data()[turn]) / 1e3);
    return took_us;
  }

 private:
  World& world_;
  Accelerator& gpu_;
  Network& network_;
  ErrorRecord record_;
  const bool on_gpu_;
  const uint64_t bytes_;
  NetworkMemory memory_;
  const std::vector<uint32_t> queues_;
  const SharedArray<uint64_t> took_ns_;
  std::vector<NetworkTarget> targets_;
  uint64_t seen_ = 0;
};

/// Does with sockets what `End::ping` does.
std::vector<double> raw_ping(RawTcp& raw, uint32_t rank, uint32_t turns,
                             std::span<std::byte> source, std::span<std::byte> target) {
  const std::vector<FileDescriptor>& paths = raw.ends[rank];
  std::array<std::byte, 16> word{};
  const bool small = source.size() <= 8;
  const std::span<std::byte> said = small ? std::span(word) : source;
  const std::span<std::byte> heard = small ? std::span(word) : target;
  const std::span<std::byte> answer(word);
  const std::vector<FileDescriptor>& all = paths;
  std::vector<double> took_us(turns);
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const auto begin = Clock::now();
    if (rank == 0) {
      send_all(all, said);
      receive_all(all, answer);
    } else {
      receive_all(all, heard);
      send_all(all, answer);
    }
    took_us[turn] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }
  return took_us;
}

std::string size_of(uint64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{} MB", bytes >> 20)
         : bytes >= 1024  ? fmt::format("{} KB", bytes >> 10)
                          : fmt::format("{} bytes", bytes);
}

std::vector<std::unique_ptr<World>> two_hosts(const Settings& settings, uint32_t paths,
                                              uint64_t bytes) {
  WorldOptions options{
      .timeout = std::chrono::seconds(60), .arena_bytes = 2 * bytes + (1 << 20), .hosts = 2};
  if (settings.on_gpu()) {
    options.network.connections = paths;
    return worlds_on(2, settings.device, options);
  }
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < 2; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  return join_all(accelerators, std::make_shared<InProcessFabric>(2), options, {},
                  proxy_networks({.tcp = {.address = "127.0.0.1", .paths = paths}}));
}

void measure(const Settings& settings, uint32_t paths, std::unique_ptr<Report>& report) {
  const uint64_t most = *std::max_element(settings.bytes.begin(), settings.bytes.end());
  auto worlds = two_hosts(settings, paths, most);
  if (!report) report = std::make_unique<Report>("networks", *worlds[0]);
  const bool shared = accelerator_of(*worlds[0]).capacity().one_grid;
  RawTcp raw(paths);
  std::barrier aligned(2);
  on_each_rank(worlds, [&](World& world) {
    const uint32_t rank = world.rank();
    End end(world, most, settings.on_gpu());
    std::vector<std::byte> raw_target(most);
    for (uint64_t byte = 0; byte < most; ++byte)
      end.source()[byte] = static_cast<std::byte>(byte * 31 + byte / 255 + 1);
    const auto row = [&](const std::string& name, uint64_t bytes, uint32_t turns) {
      std::vector<double> ours, theirs;
      // Turn about, so that both have the same machine.
      for (uint32_t round = 0; round <= settings.repetitions; ++round) {
        const auto one = end.ping(turns, bytes);
        aligned.arrive_and_wait();
        const auto other = raw_ping(raw, rank, turns, end.source().first(bytes),
                                    std::span(raw_target).first(bytes));
        aligned.arrive_and_wait();
        const bool same = std::memcmp(end.target().data(), end.source().data(), bytes) == 0;
        if (rank == 1 && !same) throw std::runtime_error(name + ": other bytes have arrived");
        if (round == 0) continue;  // The first one warms up.
        ours.push_back(spread_of(one).median);
        theirs.push_back(spread_of(other).median);
      }
      if (rank != 0) return;
      report->add(
          {.name = fmt::format("{} proxy/tcp, {} connection{}{}", name, paths,
                               paths == 1 ? "" : "s", settings.on_gpu() ? ", GPU kernels" : ""),
           .gpus = !settings.on_gpu() ? 0u
                   : shared           ? 1u
                                      : 2u,
           .ranks = 2,
           .tokens = 0,
           .hidden = 0,
           .sms = 0,
           .ours = spread_of(ours),
           .floor = 0,
           .peer = PeerTimes{"raw tcp", spread_of(theirs)}});
    };
    row("round trip", 8, 200);
    for (const uint64_t bytes : settings.bytes)
      row("put " + size_of(bytes), bytes, bytes >= 16 << 20 ? 1 : 20);
    world.barrier("bench: measured");
  });
}

/// Completes every request at once.
class IdleTransport final : public Transport {
 public:
  std::string name() const override { return "nothing"; }
  void set_listener(TransportListener& listener) override { listener_ = &listener; }
  bool post(const PostedRequest& request) override {
    listener_->completed(request.peer, request.queue, request.turn);
    return true;
  }
  bool settle(uint32_t peer, uint32_t queue, uint32_t turn) override {
    listener_->settled(peer, queue, turn);
    return true;
  }
  bool poll() override { return false; }
  void sleep(std::chrono::nanoseconds, int) override { std::this_thread::yield(); }
  void register_memory(MemoryKey, std::span<std::byte>) override {}
  void withdraw(uint32_t) override {}
  void drop(uint32_t, bool) override {}
  std::optional<std::string> broken(uint32_t) const override { return std::nullopt; }
  void close() override {}

 private:
  TransportListener* listener_ = nullptr;
};

/// A proxy whose transport does nothing, and its queues to one peer.
class IdleProxy {
 public:
  IdleProxy(Accelerator& gpu, uint32_t queues)
      : pairs_(gpu, queues), words_(gpu, 1), gpu_(gpu), queues_(queues) {
    *words_.data() = kNoAbort;
    Proxy::Queues of{.per_peer = queues,
                     .pairs = std::vector<QueuePair*>(queues, nullptr),
                     .gone = gone_.data(),
                     .refused = words_.data()};
    for (uint32_t number = 0; number < queues; ++number) {
      pairs_.data()[number].peer = 1;
      of.pairs.push_back(pairs_.data() + number);
    }
    proxy_ = std::make_unique<Proxy>(std::make_unique<IdleTransport>(), of,
                                     ProxyOptions{.spin = std::chrono::seconds(10)});
  }
  /// Returns the kernels' ends, as new.
  NetworkQueues make_ends(std::unique_ptr<tokenyard::DeviceMemory>& memory) const {
    std::vector<QueueEnd> ends(2 * queues_);
    for (uint32_t number = 0; number < queues_; ++number) {
      QueueEnd& end = ends[queues_ + number];
      end.pair = pairs_.data() + number;
      if (gpu_.kind() == AcceleratorKind::host) end.doorbell = proxy_->doorbell();
      end.peer = 1;
      end.number = number;
      end.posted = end.completed = end.pair->completed;
    }
    memory = std::make_unique<tokenyard::DeviceMemory>(gpu_, ends.size() * sizeof(QueueEnd),
                                                       tokenyard::DeviceMemory::Kind::device);
    gpu_.copy(memory->as<QueueEnd>(), ends.data(), ends.size() * sizeof(QueueEnd), Stream{});
    finish(gpu_);
    return {.ends = memory->as<QueueEnd>(), .arena_keys = nullptr, .per_peer = queues_};
  }

 private:
  const SharedArray<QueuePair> pairs_;
  const SharedArray<AbortWord> words_;
  Accelerator& gpu_;
  const uint32_t queues_;
  const std::array<AbortWord, 2> gone_{};
  std::unique_ptr<Proxy> proxy_;
};

struct Requests {
  std::string name;
  uint32_t warps, count;
  bool one_at_a_time = false;  ///< the time is then of each
};

void measure_requests(const Settings& settings, Report& report, const Requests& requests) {
  const auto worlds = worlds_on(1, settings.device);
  Accelerator& gpu = accelerator_of(*worlds[0]);
  AbortFlag abort_flag(gpu);
  ErrorRecord record(gpu, abort_flag);
  const IdleProxy proxy(gpu, requests.warps);
  std::unique_ptr<tokenyard::DeviceMemory> memory;
  const NetworkQueues queues = proxy.make_ends(memory);
  const SharedArray<uint64_t> begun_ns(gpu, requests.warps), ended_ns(gpu, requests.warps);
  std::vector<double> ours;
  for (uint32_t round = 0; round <= settings.repetitions; ++round) {
    launch(gpu, requests_kernel, {.blocks = requests.warps, .local = true}, Stream{},
           RequestsParams{.wait_context = record.wait_context(std::chrono::seconds(60)),
                          .queues = queues,
                          .count = requests.count,
                          .flushes_each = requests.one_at_a_time,
                          .begun_ns = begun_ns.data(),
                          .ended_ns = ended_ns.data()});
    finish(gpu);
    record.check(kPhases);
    const uint64_t begin = *std::min_element(begun_ns.data(), begun_ns.data() + requests.warps);
    const uint64_t end = *std::max_element(ended_ns.data(), ended_ns.data() + requests.warps);
    const double each = requests.one_at_a_time ? 1e3 * requests.count : 1e3;
    if (round != 0) ours.push_back(static_cast<double>(end - begin) / each);
  }
  report.add({.name = fmt::format("{}, {} kernel, no transport", requests.name, settings.kernel()),
              .gpus = settings.on_gpu() ? 1u : 0u,
              .ranks = 1,
              .tokens = 0,
              .hidden = 0,
              .sms = 0,
              .ours = spread_of(ours),
              .floor = 0});
}

/// Copies between pinned memory and a GPU's, by its multiprocessors and by its copy engines.
class PinnedCopies {
 public:
  static constexpr uint32_t kRowBytes = 14336;

  PinnedCopies(World& world, uint64_t bytes, uint32_t repetitions)
      : gpu_(accelerator_of(world)),
        rows_(static_cast<uint32_t>(bytes / kRowBytes)),
        repetitions_(repetitions),
        streams_{gpu_.make_stream(), gpu_.make_stream()},
        host_in_(gpu_, bytes_of_rows()),
        host_out_(gpu_, bytes_of_rows()),
        device_in_(gpu_, bytes_of_rows(), tokenyard::DeviceMemory::Kind::device),
        device_out_(gpu_, bytes_of_rows(), tokenyard::DeviceMemory::Kind::device) {
    for (size_t byte = 0; byte < bytes_of_rows(); ++byte)
      host_in_.data()[byte] = static_cast<std::byte>(byte * 31 + byte / 255 + 1);
  }
  ~PinnedCopies() {
    for (const Stream stream : streams_) gpu_.free_stream(stream);
  }
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;

  /// Copies in by one multiprocessor and out again by two, and compares.
  void check() {
    by_sms(Way::in, 1);
    finish(gpu_, streams_[0]);
    gpu_.copy(device_out_.as<std::byte>(), device_in_.as<std::byte>(), bytes_of_rows(),
              streams_[1]);
    by_sms(Way::out, 2);
    finish(gpu_, streams_[1]);
    if (std::memcmp(host_in_.data(), host_out_.data(), bytes_of_rows()) != 0)
      throw std::runtime_error("bulk copies through pinned memory have changed bytes");
  }
  void add_rows(Report& report) {
    const auto row = [&](const std::string& name, uint32_t sms, const auto& ours,
                         const auto& theirs) {
      std::vector<double> our_us, their_us;
      for (uint32_t round = 0; round <= repetitions_; ++round) {
        const double one = time(ours), other = time(theirs);
        if (round == 0) continue;
        our_us.push_back(one);
        their_us.push_back(other);
      }
      report.add({.name = name,
                  .gpus = gpu_.kind() == AcceleratorKind::gpu ? 1u : 0u,
                  .ranks = 1,
                  .tokens = 0,
                  .hidden = 0,
                  .sms = sms,
                  .ours = spread_of(our_us),
                  .floor = 0,
                  .peer = PeerTimes{"copy engine", spread_of(their_us)}});
    };
    const std::string size =
        bytes_of_rows() >> 20 >= 63 ? "64 MB" : fmt::format("{} KB", bytes_of_rows() >> 10);
    for (const uint32_t sms : {1u, 2u})
      row(
          fmt::format("{} into pinned {} SM{}", size, sms, sms == 1 ? "" : "s"), sms,
          [&] { by_sms(Way::out, sms); }, [&] { by_engine(Way::out); });
    row(
        size + " out of pinned 1 SM", 1, [&] { by_sms(Way::in, 1); }, [&] { by_engine(Way::in); });
    row(
        size + " both ways, into pinned 2 SMs, out 1 SM", 3,
        [&] {
          by_sms(Way::in, 1);
          by_sms(Way::out, 2);
        },
        [&] {
          by_engine(Way::in);
          by_engine(Way::out);
        });
  }

 private:
  enum class Way : uint8_t { in, out };  ///< to the GPU, and from it

  size_t bytes_of_rows() const { return size_t{rows_} * kRowBytes; }
  Stream stream_of(Way way) const { return streams_[way == Way::in ? 0 : 1]; }
  const std::byte* from(Way way) const {
    return way == Way::in ? host_in_.data() : device_out_.as<std::byte>();
  }
  std::byte* to(Way way) const {
    return way == Way::in ? device_in_.as<std::byte>() : host_out_.data();
  }
  void by_sms(Way way, uint32_t sms) {
    const uint32_t warps = std::min(
        kCopyWarps, static_cast<uint32_t>(
                        (gpu_.capacity().shared_bytes - sizeof(CopyShared) - 128) / kRowBytes));
    launch(gpu_, copy_kernel,
           {.blocks = sms,
            .warps = warps,
            .extra_shared_bytes = warps * kRowBytes,
            .cooperative = false,
            .local = true},
           stream_of(way),
           CopyParams{.from = from(way), .to = to(way), .rows = rows_, .row_bytes = kRowBytes});
  }
  void by_engine(Way way) { gpu_.copy(to(way), from(way), bytes_of_rows(), stream_of(way)); }
  /// Returns the microseconds until both streams have done what `enqueue` enqueues.
  double time(const auto& enqueue) {
    const Event begin = gpu_.record(streams_[0]);
    gpu_.wait(streams_[1], begin);
    enqueue();
    const Event other = gpu_.record(streams_[1]);
    gpu_.wait(streams_[0], other);
    const Event end = gpu_.record(streams_[0]);
    finish(gpu_, streams_[0]);
    const double us = gpu_.elapsed_ms(begin, end) * 1e3;
    for (const Event event : {begin, other, end}) gpu_.free_event(event);
    return us;
  }

  Accelerator& gpu_;
  const uint32_t rows_, repetitions_;
  const std::array<Stream, 2> streams_;
  const SharedArray<std::byte> host_in_, host_out_;
  const tokenyard::DeviceMemory device_in_, device_out_;
};

void measure_pinned(const Settings& settings, Report& report) {
  const auto worlds = worlds_on(1, settings.device);
  const uint64_t most = *std::max_element(settings.bytes.begin(), settings.bytes.end());
  PinnedCopies copies(*worlds[0], most, settings.repetitions);
  copies.check();
  // A host has no engine beside its processors.
  if (settings.on_gpu()) copies.add_rows(report);
}

void run(const Settings& settings) {
  std::unique_ptr<Report> report;
  for (const uint32_t paths : settings.paths) measure(settings, paths, report);
  std::vector<Requests> requests{{"request and flush, each of 1000", 1, 1000, true},
                                 {"1000 requests", 1, 1000}};
  if (settings.on_gpu()) {
    requests.push_back({"1000 requests 16 warps", 16, 1000});
    requests.push_back({"1000 requests 64 warps", 64, 1000});
  }
  for (const Requests& each : requests) measure_requests(settings, *report, each);
  measure_pinned(settings, *report);
  report->finish(settings.output);
}

}  // namespace
}  // namespace tokenyard::bench

int main(int count, char** arguments) {
  using namespace tokenyard::bench;
  Settings settings;
  bool smoke = asks_for_smoke(count, arguments);
  if (smoke) {
    settings.paths = {2};
    settings.bytes = {64 << 10, 3 << 20};
    settings.repetitions = 2;
  }
  CLI::App app("Checks networks between hosts, then measures them beside plain sockets",
               "./run bench networks");
  app.option_defaults()->always_capture_default();
  app.add_option("--paths", settings.paths, "connections per peer; several to compare")
      ->delimiter(',')
      ->check(in_range<uint32_t>(1, tokenyard::kPathsMax));
  app.add_option("--bytes", settings.bytes, "bytes of a put; several to compare")
      ->delimiter(',')
      ->check(in_range<uint64_t>(64, tokenyard::kNetworkPutMax));
  app.add_option("--device", settings.device, "cuda or host")
      ->check(CLI::IsMember({"cuda", "host"}));
  app.add_option("--repetitions", settings.repetitions, "measured repetitions")
      ->check(in_range<uint32_t>(1, 10'000));
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/networks.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, count, arguments)) return *status;
  return exit_of_run([&] { run(settings); });
}
