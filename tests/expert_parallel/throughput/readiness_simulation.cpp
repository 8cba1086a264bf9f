// Suite `readiness`: rows stored by other ranks, the words that announce them, and part of a kernel
// that reads the rows as soon as they are announced. It uses the end of a dispatch unchanged,
// around the same words, with nothing else that could order its rows.
#include <fmt/format.h>

#include <vector>

#include "device/device.hpp"
#include "expert_parallel/rank_memory.hpp"
#include "expert_parallel/throughput/kernels/readiness_kernel.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::SeedRun;
using throughput::Readiness;
using throughput::Watched;

constexpr uint32_t kSenders = 2;  ///< Blocks of a source, here its warps.
constexpr uint32_t kRowWords = 40;

/// Memory of a rank that its peers write.
struct ArrivalWindow {
  static size_t rows(uint32_t source, uint32_t sender) {
    return (size_t{source} * kSenders + sender) * kRowWords * sizeof(uint32_t);
  }
  static size_t finished(uint32_t ranks, uint32_t source, uint32_t sender) {
    return rows(ranks, 0) + (size_t{source} * kSenders + sender) * sizeof(uint32_t);
  }
  static size_t bytes(uint32_t ranks) { return finished(ranks, ranks, 0); }
};

enum class ArrivalPhase : uint32_t { finished, source, expert };

struct ArrivalParams {
  uint32_t rank, ranks;
  bool knows_experts;
  uint64_t window;  ///< offset in every rank's arena
  PeerArray<std::byte> arenas;
  Readiness readiness;        ///< one expert per source; only that source's rows use it
  uint32_t* taken;            ///< [ranks] sums of a source's words, read after its ready word
  uint32_t* taken_by_expert;  ///< [ranks] the same, after its expert's ready word
  WaitContext wait_context;
};

TOKENYARD_DEVICE uint32_t arrival_word(uint32_t source, uint32_t to, uint32_t sender,
                                       uint32_t word) {
  return source * 0x01000193u + to * 0x00010001u + sender * 0x9e3779b9u + word;
}

template <class T>
TOKENYARD_DEVICE Peer<T> arrival_at(const ArrivalParams& params, uint32_t rank, size_t offset) {
  return (params.arenas.of(rank) + static_cast<std::ptrdiff_t>(params.window + offset))
      .template as<T>();
}

/// Stores rows to every rank, then the word that announces them. Called by a warp of block 0.
TOKENYARD_DEVICE void send_rows(const ArrivalParams& params) {
  const uint32_t sender = warp::index();
  for (uint32_t to = 0; to < params.ranks; ++to) {
    const auto row = arrival_at<uint32_t>(params, to, ArrivalWindow::rows(params.rank, sender));
    for (uint32_t word = warp::lane(); word < kRowWords; word += kWarpLanes)
      store<Order::weak, Scope::sys>(row + word, arrival_word(params.rank, to, sender, word));
    warp::sync();
    if (warp::lane() == 0)
      store<Order::release, Scope::sys>(
          arrival_at<uint32_t>(params, to,
                               ArrivalWindow::finished(params.ranks, params.rank, sender)),
          1u);
  }
}

/// The role of block 0, as at the end of a dispatch.
TOKENYARD_DEVICE void see_arrivals(const ArrivalParams& params, const CallDeadline& deadline) {
  for (uint32_t source = thread::index(); source < params.ranks; source += block::threads())
    throughput::note_named(params.readiness, source, source);
  if (warp::index() < kSenders) send_rows(params);
  block::sync();
  const AbsentRanks nobody{.words = nullptr};
  const Watched watched(params.readiness, nobody, deadline, params.knows_experts);
  for (uint32_t i = thread::index(); i < params.ranks * kSenders; i += block::threads()) {
    const uint32_t source = i / kSenders, sender = i % kSenders;
    Awaited what{
        .phase = static_cast<uint32_t>(ArrivalPhase::finished), .rank = source, .expected = 1};
    const bool finished = wait_until(deadline, what, [&] {
      what.seen = load<Order::acquire, Scope::sys>(arrival_at<uint32_t>(
          params, params.rank, ArrivalWindow::finished(params.ranks, source, sender)));
      return what.seen == 1;
    });
    if (finished) watched.block_finished(source, kSenders);
  }
  watched.all_finished();
}

/// Adds up the words of a source's rows, once `ready` announces them. Called by one thread.
TOKENYARD_DEVICE void take_rows(const ArrivalParams& params, const CallDeadline& deadline,
                                ArrivalPhase phase, uint32_t source, const uint32_t& ready,
                                uint32_t& taken) {
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = source, .expected = 1};
  const bool here = wait_until(deadline, what, [&] {
    what.seen = load<Order::acquire, Scope::gpu>(&ready);
    return what.seen == 1;
  });
  if (!here) return;
  const auto* const words = reinterpret_cast<const uint32_t*>(params.arenas.mine() + params.window +
                                                              ArrivalWindow::rows(source, 0));
  for (uint32_t word = 0; word < kSenders * kRowWords; ++word) taken += words[word];
}

TOKENYARD_DEVICE void arrivals(const ArrivalParams& params) {
  const CallDeadline deadline(params.wait_context);
  if (block::index() == 0) return see_arrivals(params, deadline);
  const uint32_t source = thread::index() / 2;
  if (source >= params.ranks) return;
  if (thread::index() % 2 == 0)
    take_rows(params, deadline, ArrivalPhase::source, source, params.readiness.source(source),
              params.taken[source]);
  else
    take_rows(params, deadline, ArrivalPhase::expert, source, params.readiness.expert(source),
              params.taken_by_expert[source]);
}

TOKENYARD_DEFINE_HOST_KERNEL(arrivals_kernel, arrivals, ArrivalParams, NoShared, 96)

void arrive(World& world, bool knows_experts) {
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t ranks = world.size();
  const ArenaBlock window = arena_of(world).allocate(ArrivalWindow::bytes(ranks), Stream{});
  accelerator.fill(window.data(), 0, window.bytes(), Stream{});
  Readiness readiness{.words = nullptr, .ranks = ranks, .local_experts = ranks};
  readiness.words = static_cast<uint32_t*>(accelerator.allocate(readiness.bytes()));
  auto* const taken =
      static_cast<uint32_t*>(accelerator.allocate(size_t{2} * ranks * sizeof(uint32_t)));
  ErrorRecord failure(accelerator, abort_flag_of(world));
  await_all(accelerator);
  world.barrier("windows are cleared");
  launch(accelerator, arrivals_kernel, {.blocks = 2, .warps = 3}, Stream{},
         {.rank = world.rank(),
          .ranks = ranks,
          .knows_experts = knows_experts,
          .window = window.offset(),
          .arenas = arena_of(world).bases(),
          .readiness = readiness,
          .taken = taken,
          .taken_by_expert = taken + ranks,
          .wait_context = failure.wait_context(world.timeout())});
  const Event end = accelerator.record(Stream{});
  accelerator.wait_until(accelerator.now() + 2 * world.timeout(),
                         [&] { return accelerator.done(end) || failure.failed(); });
  accelerator.free_event(end);
  const std::vector<std::string> phases{"finished", "a source's rows", "an expert's rows"};
  failure.check(phases);
  for (uint32_t source = 0; source < ranks; ++source) {
    uint32_t wanted = 0;
    for (uint32_t sender = 0; sender < kSenders; ++sender)
      for (uint32_t word = 0; word < kRowWords; ++word)
        wanted += arrival_word(source, world.rank(), sender, word);
    for (const uint32_t seen : {taken[source], taken[ranks + source]})
      if (seen != wanted)
        throw simulation::SuiteFailure(
            fmt::format("the rows of {} add up to {:#x}, not {:#x}", source, seen, wanted));
  }
  world.barrier("all have looked");
}

void run_suite(SeedRun& run) {
  const uint32_t ranks = run.option("ranks", run.random.between(1, 5));
  const bool knows_experts = run.option("knows_experts", run.random.chance(512));
  simulated::run(run, {.ranks = ranks, .arena_bytes = size_t{64} << 10}, [&](World& world) {
    arrive(world, knows_experts);
  }).require_clean({});
}

const bool registered = simulation::add_suite(
    {.name = "readiness",
     .what = "rows may be read once a dispatch's words announce them",
     .run = run_suite,
     .explained = {{simulation::Fault::sys_made_gpu, "wait.hpp:102",
                    "shows only if a host sets the abort flag, as for ranks that stop in suite "
                    "throughput"}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
