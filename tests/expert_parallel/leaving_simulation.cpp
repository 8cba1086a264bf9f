// Suite `leaving`: a rank leaves properly while the others make calls. Calls that it took part in
// complete on every rank, since what it sent before it left counts. The first call without it ends
// at once, long before its deadline.
#include <fmt/format.h>

#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::SeedRun;

/// Per call, in virtual time: a wait that only a deadline could end takes that long.
constexpr std::chrono::seconds kTimeout{1000};

struct Drawn {
  uint32_t ranks = 0, leaver = 0;
  uint32_t calls = 0;       ///< pairs of dispatch and combine in which all ranks take part
  bool dispatches = false;  ///< the leaver dispatches once more, so that the combine lacks it
  uint32_t seed = 0;
};

Drawn draw(SeedRun& run) {
  Drawn drawn;
  drawn.ranks = run.option("ranks", run.random.between(2, 4));
  drawn.leaver = run.option("leaver", run.random.below(drawn.ranks));
  drawn.calls = run.option("calls", run.random.below(3));
  drawn.dispatches = run.option("dispatches", run.random.chance(512));
  drawn.seed = static_cast<uint32_t>(run.random.next());
  return drawn;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw simulation::SuiteFailure(what);
}

/// Requires that a wait for the leaver ended because it left.
void require_left(uint32_t leaver, const WaitFacts& facts) {
  require(facts.rank == leaver, fmt::format("rank {} is accused, not {}", facts.rank, leaver));
  require(facts.phase.ends_with("(it left the world)"), "it is not said to have left");
  require(facts.waited_s < 0.5 * std::chrono::duration<double>(kTimeout).count(),
          fmt::format("rank {} was waited for {} s", facts.rank, facts.waited_s));
}

template <class Call>
void expect_left(uint32_t leaver, Call call) {
  try {
    call();
  } catch (const PeerLost& lost) {
    return require_left(leaver, lost.facts);
  }
  throw simulation::SuiteFailure("a call without the rank that left ended well");
}

void exchange_on(World& world, const Drawn& drawn) {
  const bool leaves = world.rank() == drawn.leaver;
  ExchangeCase of{
      .shape = {.ranks = drawn.ranks, .experts = 2 * drawn.ranks, .hidden = 16, .topk = 2},
      .tokens = std::vector<uint32_t>(drawn.ranks, 3),
      .sms = 2,
      .seed = drawn.seed};
  const std::vector<Tokens> all = of.draw();
  const Tokens& mine = all[world.rank()];
  const Expected expected = expected_on(of.shape, all, world.rank());
  ExpertParallel exchange(world, of.options());
  const TokensOnDevice tokens(accelerator_of(world), mine, true);
  const auto combine = [&](const Received& received) {
    require(difference_after_combine(exchange, received, of.shape, mine, expected, {}).empty(),
            "a combine brought something else");
  };
  for (uint32_t call = 0; call < drawn.calls; ++call) combine(exchange.dispatch(tokens.input()));
  if (leaves && !drawn.dispatches) return;
  if (!drawn.dispatches)
    return expect_left(drawn.leaver, [&] {
      exchange.dispatch(tokens.input());
      exchange.wait();
    });
  const Received received = exchange.dispatch(tokens.input());
  if (leaves) return;
  require(difference(exchange, received, expected).empty(), "the last dispatch lacks something");
  expect_left(drawn.leaver, [&] {
    const DeviceArray<uint16_t> out(accelerator_of(world), mine.x.size());
    exchange.combine({.y = received.x}, *received.route,
                     {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
  });
}

void run_throughput(SeedRun& run) {
  const Drawn drawn = draw(run);
  simulated::run(run, {.ranks = drawn.ranks, .arena_bytes = size_t{4} << 20, .timeout = kTimeout},
                 [&](World& world) {
                   exchange_on(world, drawn);
                   if (world.rank() == drawn.leaver) world.goodbye()();
                 })
      .require_clean({});
}

std::vector<uint32_t> draw_hosts(SeedRun& run) {
  const uint32_t hosts = run.option("hosts", run.random.between(2, 3));
  std::vector<uint32_t> host_of;
  for (uint32_t host = 0; host < hosts; ++host)
    host_of.insert(host_of.end(), run.random.between(1, 2), host);
  run.option("host_of", fmt::format("{}", host_of));
  return host_of;
}

/// Only a leaver's host and its rail peers see that it says nothing more: the other ranks learn it
/// from these, at once and by name. Ranks that have learned it leave, too, without being named.
void run_leaver_between_hosts(SeedRun& run) {
  const std::vector<uint32_t> host_of = draw_hosts(run);
  Drawn drawn;
  drawn.ranks = static_cast<uint32_t>(host_of.size());
  drawn.leaver = run.option("leaver", run.random.below(drawn.ranks));
  drawn.calls = run.option("calls", run.random.below(3));
  drawn.dispatches = run.option("dispatches", run.random.chance(512));
  drawn.seed = static_cast<uint32_t>(run.random.next());
  simulated::run(run,
                 {.ranks = drawn.ranks,
                  .host_of = host_of,
                  .arena_bytes = size_t{4} << 20,
                  .timeout = kTimeout,
                  .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000)},
                  .queues_per_peer = 2},
                 [&](World& world) {
                   exchange_on(world, drawn);
                   world.goodbye()();
                 })
      .require_clean({});
}

/// All ranks leave as soon as their last call has ended: others may still be in it.
void run_between_hosts(SeedRun& run) {
  const std::vector<uint32_t> host_of = draw_hosts(run);
  const uint32_t calls = run.option("calls", run.random.between(1, 2));
  const auto ranks = static_cast<uint32_t>(host_of.size());
  ExchangeCase of{.shape = {.ranks = ranks, .experts = 2 * ranks, .hidden = 16, .topk = 2},
                  .tokens = std::vector<uint32_t>(ranks, 3),
                  .sms = 2,
                  .seed = static_cast<uint32_t>(run.random.next())};
  simulated::run(run,
                 {.ranks = ranks,
                  .host_of = host_of,
                  .arena_bytes = size_t{4} << 20,
                  .timeout = kTimeout,
                  .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
                           .stall_ns_max = run.option("stall", run.random.below(2) * 100'000'000)},
                  .queues_per_peer = 2},
                 [&](World& world) {
                   const std::vector<Tokens> all = of.draw();
                   const Expected expected = expected_on(of.shape, all, world.rank());
                   {
                     ExpertParallel exchange(world, of.options());
                     const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
                     for (uint32_t call = 0; call < calls; ++call) {
                       const Received received = exchange.dispatch(tokens.input());
                       require(difference_after_combine(exchange, received, of.shape,
                                                        all[world.rank()], expected, {})
                                   .empty(),
                               "a combine brought something else");
                     }
                   }
                   world.goodbye()();
                 })
      .require_clean({});
}

void batches_on(World& world, const Drawn& drawn) {
  LowLatencyCase of;
  of.shape = {.ranks = drawn.ranks, .experts = 2 * drawn.ranks, .hidden = 32, .topk = 2};
  of.tokens = std::vector<uint32_t>(drawn.ranks, 2);
  of.sms = 2;
  of.seed = drawn.seed;
  LowLatency exchange(world, of.options());
  const auto exchange_batches = [&](uint32_t batches, std::optional<uint32_t> gone) {
    Survivor survivor(exchange, gone);
    for (uint32_t i = 0; i < batches; ++i) {
      of.seed += 1;
      SurvivorBatch batch(survivor, of, false);
      batch.dispatch(false);
      batch.combine(false);
    }
    survivor.require_only_the_stopped_masked();
  };
  exchange_batches(drawn.calls, std::nullopt);
  if (world.rank() == drawn.leaver) return;
  exchange_batches(1, drawn.leaver);
  const std::vector<FailedRank> masked = exchange.failed_ranks();
  require(masked.size() == 1, "the rank that left is not masked");
  require(masked[0].why == FailedRank::Why::lost, "it is not masked as one that is gone");
  require_left(drawn.leaver, {.rank = masked[0].rank,
                              .phase = masked[0].phase,
                              .expected = 0,
                              .seen = 0,
                              .waited_s = masked[0].waited_s});
}

void run_low_latency(SeedRun& run) {
  const Drawn drawn = draw(run);
  simulated::run(run, {.ranks = drawn.ranks, .arena_bytes = size_t{2} << 20, .timeout = kTimeout},
                 [&](World& world) {
                   batches_on(world, drawn);
                   if (world.rank() == drawn.leaver) world.goodbye()();
                 })
      .require_clean({});
}

void run_suite(SeedRun& run) {
  switch (run.option("kind", run.random.below(4))) {
    case 0:
      return run_low_latency(run);
    case 1:
      return run_throughput(run);
    case 2:
      return run_leaver_between_hosts(run);
    default:
      return run_between_hosts(run);
  }
}

const bool registered = simulation::add_suite(
    {.name = "leaving",
     .what = "a rank that leaves disturbs no call that it took part in, and ends the next at once",
     .run = run_suite,
     .seeds = 100});

}  // namespace
}  // namespace tokenyard::test
