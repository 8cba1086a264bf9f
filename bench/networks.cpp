// Measures networks between hosts: puts and signals of a proxy over TCP, beside plain sockets that
// receive into regions of the same size, in the same run. Both carry the same bytes over as many
// connections of this host's loopback.
//
//   ./run bench networks
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
#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/proxy/proxy_network.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::bench {
namespace {

struct Settings {
  std::vector<uint32_t> paths{1, 2, 4};
  std::vector<uint64_t> bytes{64 << 10, 1 << 20, 64 << 20};
  uint32_t repetitions = 20;
  std::string output;
};

const std::array<std::string, 1> kPhases = {"bench: network"};

/// One rank's end, with memory that holds a source and a target.
class End {
 public:
  End(World& world, uint64_t bytes)
      : world_(world),
        gpu_(accelerator_of(world)),
        network_(*network_of(world)),
        record_(gpu_, abort_flag_of(world)),
        bytes_(bytes),
        block_(arena_of(world).allocate(2 * bytes + 64, Stream{})) {
    std::memset(block_.data(), 0, block_.bytes());
    offsets_ = gather(world, block_.offset(), "bench: offsets");
  }
  std::span<std::byte> source() { return {block_.data(), bytes_}; }
  std::span<std::byte> target() { return {block_.data() + bytes_, bytes_}; }

  /// Returns the microseconds of each turn; of the first rank, another's are 0.
  std::vector<double> ping(uint32_t turns, uint64_t bytes) {
    const uint32_t peer = 1 - world_.rank();
    const bool first = world_.rank() == 0;
    const NetworkTarget there{.key = network_.arena_key(peer), .offset = offsets_[peer]};
    std::vector<uint64_t> took_ns(turns);
    world_.barrier("bench: ping");
    launch(gpu_, ping_kernel, {}, Stream{},
           PingParams{.wait_context = record_.wait_context(std::chrono::seconds(60)),
                      .queues = network_.queues(),
                      .peer = peer,
                      .first = first,
                      .spins = std::thread::hardware_concurrency() >= 8,
                      .turns = turns,
                      .target = there + bytes_,
                      .flag = there + 2 * bytes_,
                      // The answer to a put is a signal.
                      .source = {.key = network_.arena_key(world_.rank()),
                                 .bytes = static_cast<uint32_t>(first       ? bytes
                                                                : bytes > 8 ? 0
                                                                            : bytes),
                                 .from = block_.data()},
                      .word = reinterpret_cast<uint64_t*>(block_.data() + 2 * bytes_),
                      .seen = seen_,
                      .took_ns = took_ns.data()});
    record_.check(kPhases);
    seen_ += turns;
    std::vector<double> took_us;
    for (const uint64_t ns : took_ns) took_us.push_back(static_cast<double>(ns) / 1e3);
    return took_us;
  }

 private:
  World& world_;
  Accelerator& gpu_;
  Network& network_;
  ErrorRecord record_;
  const uint64_t bytes_;
  ArenaBlock block_;
  std::vector<uint64_t> offsets_;
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

void measure(const Settings& settings, uint32_t paths, std::unique_ptr<Report>& report) {
  const uint64_t most = *std::max_element(settings.bytes.begin(), settings.bytes.end());
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  for (uint32_t rank = 0; rank < 2; ++rank)
    accelerators.push_back(std::make_shared<simt::HostAccelerator>([] {}));
  const WorldOptions options{
      .timeout = std::chrono::seconds(60), .arena_bytes = 2 * most + (1 << 20), .hosts = 2};
  auto worlds = join_all(accelerators, std::make_shared<InProcessFabric>(2), options, {},
                         proxy_networks({.tcp = {.address = "127.0.0.1", .paths = paths}}));
  if (!report) report = std::make_unique<Report>("networks", *worlds[0]);
  RawTcp raw(paths);
  std::barrier aligned(2);
  on_each_rank(worlds, [&](World& world) {
    const uint32_t rank = world.rank();
    End end(world, most);
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
          {.name = fmt::format("{} proxy/tcp, {} connection{}", name, paths, paths == 1 ? "" : "s"),
           .gpus = 0,
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

void measure_requests(const Settings& settings, Report& report) {
  constexpr uint32_t kRequests = 1000;
  simt::HostAccelerator host([] {});
  AbortFlag abort_flag(host);
  ErrorRecord record(host, abort_flag);
  const auto pair = std::make_unique<QueuePair>();
  pair->peer = 1;
  const std::array<AbortWord, 2> gone{};
  AbortWord refused = kNoAbort;
  Proxy proxy(
      std::make_unique<IdleTransport>(),
      {.per_peer = 1, .pairs = {nullptr, pair.get()}, .gone = gone.data(), .refused = &refused},
      {.spin = std::chrono::seconds(10)});
  std::array<QueueEnd, 2> ends{};
  ends[1].pair = pair.get();
  ends[1].doorbell = proxy.doorbell();
  ends[1].peer = 1;
  const auto measure_one = [&](uint32_t count) {
    uint64_t took_ns = 0;
    launch(host, requests_kernel, {}, Stream{},
           RequestsParams{.wait_context = record.wait_context(std::chrono::seconds(60)),
                          .queues = {.ends = ends.data(), .arena_keys = nullptr, .per_peer = 1},
                          .count = count,
                          .took_ns = &took_ns});
    record.check(kPhases);
    return static_cast<double>(took_ns) / 1e3;
  };
  for (const auto& [name, count] :
       {std::pair{"1000 requests", kRequests}, {"1 request and flush", 1u}}) {
    std::vector<double> ours;
    for (uint32_t round = 0; round <= settings.repetitions; ++round)
      ours.push_back(measure_one(count));
    ours.erase(ours.begin());
    report.add({.name = fmt::format("{}, host kernel, no transport", name),
                .gpus = 0,
                .ranks = 1,
                .tokens = 0,
                .hidden = 0,
                .sms = 0,
                .ours = spread_of(ours),
                .floor = 0});
  }
}

void run(const Settings& settings) {
  std::unique_ptr<Report> report;
  for (const uint32_t paths : settings.paths) measure(settings, paths, report);
  measure_requests(settings, *report);
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
  app.add_option("--repetitions", settings.repetitions, "measured repetitions")
      ->check(in_range<uint32_t>(1, 10'000));
  app.add_option("--output", settings.output,
                 "JSON file to write, such as bench/results/networks.json");
  app.add_flag("--smoke", smoke, "a small run on the host, as a smoke test");
  if (const auto status = exit_of_parse(app, count, arguments)) return *status;
  return exit_of_run([&] { run(settings); });
}
