/// The doctor's self-test: a dispatch and a combine among ranks of this machine, whose results are
/// checked before anything is timed.
///
/// Choice k of token t goes to rank (t + k) % ranks, so every rank receives every token of every
/// other rank as long as there are no more ranks than choices. Values are small integers: their
/// sums are exact, and every channel of a combined token is (rank + token) % 8 times the number of
/// ranks that the token went to.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "device/device_memory.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/error.hpp"
#include "tokenyard/expert_parallel.hpp"
#include "world/doctor_probes.hpp"

namespace tokenyard {

namespace {

constexpr uint32_t kChoices = 8;
constexpr uint32_t kRanksMax = kChoices;
constexpr std::chrono::seconds kTimeout{10};
constexpr uint32_t kRoundsMax = 100'000;

struct Workload {
  uint32_t tokens, hidden;
};
/// On a GPU enough rows to fill the link; on the host few enough for a round in milliseconds.
constexpr Workload kOnGpus{2048, 7168}, kOnHost{128, 1024};

/// Returns a small integer as bfloat16: the upper half of its float.
uint16_t bfloat16_of(uint32_t value) {
  const auto number = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

/// One rank's part of the test.
class TestOfRank {
 public:
  TestOfRank(World& world, const Workload& work)
      : world_(world),
        accelerator_(accelerator_of(world)),
        work_(work),
        exchange_(world, {.experts = world.size() * kChoices,
                          .hidden = work.hidden,
                          .topk = kChoices,
                          .tokens_max = work.tokens}),
        x_(accelerator_, row_bytes() * work.tokens, DeviceMemory::Kind::device),
        ids_(accelerator_, sizeof(int32_t) * kChoices * work.tokens, DeviceMemory::Kind::device),
        out_(accelerator_, row_bytes() * work.tokens, DeviceMemory::Kind::device) {
    std::vector<int32_t> ids;
    std::vector<uint16_t> x;
    for (uint32_t token = 0; token < work.tokens; ++token) {
      for (uint32_t choice = 0; choice < kChoices; ++choice)
        ids.push_back(static_cast<int32_t>((token + choice) % world.size() * kChoices + choice));
      x.insert(x.end(), work.hidden, bfloat16_of(value_of(token)));
    }
    accelerator_.copy(ids_.as<void>(), ids.data(), ids.size() * sizeof ids[0], Stream{});
    accelerator_.copy(x_.as<void>(), x.data(), x.size() * sizeof x[0], Stream{});
    wait();
  }

  /// Returns the rates of dispatch and combine on the slowest rank. Collective. Throws Error if a
  /// result is wrong.
  std::pair<double, double> run(std::chrono::nanoseconds duration) {
    const Received received = dispatch();
    check(received);
    double bytes = 0;
    for (uint32_t rank = 0; rank < world_.size(); ++rank)
      if (rank != world_.rank()) bytes += static_cast<double>(received.rows_from[rank]);
    bytes *= static_cast<double>(row_bytes());
    // As many rows come home as were sent, and by symmetry as many are sent as received.
    return {bytes / seconds_of(duration / 2, [&] { (void)dispatch(); }),
            bytes / seconds_of(duration / 2, [&] { combine(received); })};
  }

 private:
  size_t row_bytes() const { return size_t{2} * work_.hidden; }
  uint32_t value_of(uint32_t token) const { return (world_.rank() + token) % 8; }
  void wait() { exchange_.wait(Stream{}); }

  Received dispatch() {
    return exchange_.dispatch(
        {.x = {x_.as<void>(), DataType::bfloat16, {work_.tokens, work_.hidden}},
         .topk_idx = {ids_.as<int32_t>(), {work_.tokens, kChoices}}});
  }

  void combine(const Received& received) {
    exchange_.combine({.y = received.x}, *received.route,
                      {.x = {out_.as<void>(), DataType::bfloat16, {work_.tokens, work_.hidden}}});
  }

  void check(const Received& received) {
    combine(received);
    wait();
    std::vector<uint16_t> out(size_t{work_.tokens} * work_.hidden);
    accelerator_.copy(out.data(), out_.as<void>(), out.size() * sizeof out[0], Stream{});
    wait();
    const uint32_t reached = std::min(world_.size(), kChoices);
    for (uint32_t token = 0; token < work_.tokens; ++token)
      for (uint32_t channel = 0; channel < work_.hidden; ++channel)
        if (out[size_t{token} * work_.hidden + channel] != bfloat16_of(value_of(token) * reached))
          throw Error(fmt::format(
              "rank {} got a wrong sum for token {}, channel {}: bits {:#06x} instead "
              "of {:#06x}",
              world_.rank(), token, channel, out[size_t{token} * work_.hidden + channel],
              bfloat16_of(value_of(token) * reached)));
  }

  /// Returns the slowest rank's seconds per call, over `duration`.
  template <class Call>
  double seconds_of(std::chrono::nanoseconds duration, Call call) {
    const double once = slowest(seconds_of_rounds(1, call));
    const double wanted = std::chrono::duration<double>(duration).count() / std::max(once, 1e-9);
    // The same on all ranks, since they agree on the slowest one's time.
    const auto rounds = static_cast<uint32_t>(std::clamp(wanted, 1.0, double{kRoundsMax}));
    return slowest(seconds_of_rounds(rounds, call)) / rounds;
  }

  template <class Call>
  double seconds_of_rounds(uint32_t rounds, Call call) {
    world_.barrier("self-test");
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t round = 0; round < rounds; ++round) call();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double slowest(double seconds) {
    double most = 0;
    const auto mine = std::as_bytes(std::span(&seconds, 1));
    for (const auto& bytes : world_.all_gather(mine, "self-test: times")) {
      double theirs;
      std::memcpy(&theirs, bytes.data(), sizeof theirs);
      most = std::max(most, theirs);
    }
    return most;
  }

  World& world_;
  Accelerator& accelerator_;
  const Workload work_;
  ExpertParallel exchange_;
  const DeviceMemory x_, ids_, out_;
};

/// Runs the test with a thread per rank and writes the rates; throws the first rank's exception.
void run_on_each(const std::vector<std::unique_ptr<World>>& worlds, const Workload& work,
                 std::chrono::nanoseconds duration, SelfTest& test) {
  std::mutex mutex;
  std::exception_ptr failure;
  std::pair<double, double> rates;
  {
    std::vector<std::jthread> threads;
    for (const auto& world : worlds)
      threads.emplace_back([&, world = world.get()] {
        try {
          const auto mine = TestOfRank(*world, work).run(duration);
          const std::lock_guard lock(mutex);
          if (world->rank() == 0) rates = mine;  // Alike on all: the times are the slowest one's.
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
          for (const auto& other : worlds) other->cancel();  // So that no rank waits for this one.
        }
      });
  }
  if (failure) std::rethrow_exception(failure);
  test.dispatch_bytes_per_second = rates.first;
  test.combine_bytes_per_second = rates.second;
}

/// Returns the rate of rank 0's links, if each rank has a GPU and NVLinks to all others.
double link_rate(const std::vector<const GpuFacts*>& gpus, uint32_t ranks) {
  for (uint32_t from = 0; from < ranks; ++from)
    for (uint32_t to = 0; to < ranks; ++to)
      if (from != to && !gpus[from]->links[gpus[to]->index].starts_with("NV")) return 0;
  return gpus[0]->link_bytes_per_second;
}

SelfTest test_on(const DoctorProbes& ask, const std::string& device, uint32_t ranks,
                 const std::vector<const GpuFacts*>& gpus, std::chrono::nanoseconds duration) {
  SelfTest test{.device = device, .ranks = ranks, .how = "", .error = "", .remedy = ""};
  try {
    const Workload most = device == "host" ? kOnHost : kOnGpus;  // The arena holds its rows.
    const ExpertParallelOptions options{.experts = ranks * kChoices,
                                        .hidden = most.hidden,
                                        .topk = kChoices,
                                        .tokens_max = most.tokens};
    const auto memory = ExpertParallel::memory(options, ranks, most.tokens, most.tokens * ranks);
    // The rows of two dispatches: a combine's, and the next one's.
    const size_t arena = memory.arena_bytes + 3 * memory.peak_bytes;
    const auto worlds = ask.worlds(ranks, device, {.timeout = kTimeout, .arena_bytes = arena});
    test.how = worlds[0]->topology().peers[1].how;
    const Accelerator& accelerator = accelerator_of(*worlds[0]);
    const bool apart = !accelerator.capacity().one_grid;
    if (device == "cuda" && apart) test.link_bytes_per_second = link_rate(gpus, ranks);
    if (device == "cuda" && !apart) test.how = "ranks share a GPU: no link is crossed";
    const Workload& work = accelerator.kind() == AcceleratorKind::gpu ? kOnGpus : kOnHost;
    run_on_each(worlds, work, duration, test);
  } catch (const std::exception& error) {
    test.dispatch_bytes_per_second = test.combine_bytes_per_second = 0;
    test.error = error.what();
    test.remedy = device == "host"
                      ? "raise the limits of memory and threads (ulimit -u, ulimit -v; in a "
                        "container docker run --memory, --pids-limit)"
                      : "see that the GPUs are idle and healthy (nvidia-smi); until then "
                        "device=\"host\"";
  }
  return test;
}

}  // namespace

std::vector<SelfTest> self_test(const DoctorProbes& ask, const Diagnosis& found,
                                std::chrono::nanoseconds duration) {
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 2u, 4u);
  std::vector<SelfTest> tests{test_on(ask, "host", threads, {}, duration)};
  const std::vector<const GpuFacts*> gpus = visible_gpus(found.gpus);
  if (!gpus.empty() && !ask.toolkit().empty()) {
    // Two ranks at least; where CUDA shows one GPU, they share it.
    const auto ranks = std::clamp(static_cast<uint32_t>(gpus.size()), 2u, kRanksMax);
    tests.push_back(test_on(ask, "cuda", ranks, gpus, duration));
  }
  return tests;
}

}  // namespace tokenyard
