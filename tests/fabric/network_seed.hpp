/// The contract of networks as a simulator suite: a seed draws a clause, and how mean the card is.
#pragma once

#include "fabric/network_contract.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::testing {

using simulation::SeedRun;

enum class Clause : uint32_t {
  order,
  flush,
  rings,
  absent,
  bad_request,
  deregistering,
  leaving,
  pace,
  pairs,
  shared
};
inline constexpr std::array kClauses{"order",         "flush",   "rings", "absent", "bad request",
                                     "deregistering", "leaving", "pace",  "pairs",  "shared"};

/// Runs one clause as a rank.
struct Drawn {
  Clause clause;
  uint32_t ring_slots, ring_messages;
  BadRequest bad;
  Ending ending;
  uint32_t blocks;  ///< of the warps that share a queue
  bool sparse;      ///< puts are posted while the latency of others passes
  NetworkFixture::Options fixture;
  bool loses = false;  ///< a rank or a card may stop

  void operator()(World& world) const {
    try {
      run_clause(world);
    } catch (const NetworkFault& error) {
      // A rank that misses another one takes its window away, and cards refuse what others still
      // put there. An mlx5 card tells less.
      const NetworkFault::Facts& facts = error.facts;
      const bool taken_away = (facts.check == "target key" && facts.expected == 0) ||
                              facts.check == "target" || facts.check == "queue" ||
                              facts.check == "connection";
      if (!loses || !taken_away) throw;
    }
  }

  void run_clause(World& world) const {
    switch (clause) {
      case Clause::order:
        return signals_follow_puts(world, 3, fixture);
      case Clause::flush:
        return flush_frees_sources(world, fixture);
      case Clause::rings:
        return rings_keep_credit(world, ring_slots, ring_messages, fixture);
      case Clause::absent:
        return names_the_absent_over_network(world);
      case Clause::bad_request:
        return refuses(world, bad);
      case Clause::deregistering:
        return deregistering_ends_accesses(world);
      case Clause::leaving:
        return what_was_posted_arrives(world, ending);
      case Clause::pace:
        return keeps_pace(world);
      case Clause::pairs:
        return pairs_fill_the_queue(world, QueuePair::kSlots / 2 + 3);
      case Clause::shared:
        return warps_share_a_queue(world, blocks, kSharers / blocks);
    }
  }

  // Four puts at 1 us per byte: one behind the other on the link, or posted while the latency of
  // others passes. No schedule makes them faster. How much slower they are, the schedule says.
  static constexpr uint32_t kPuts = 4;
  static constexpr double kGigabytesPerSecond = 1e-3;
  uint32_t latency_ns() const { return sparse ? 2'000'000 : 100'000; }
  void keeps_pace(World& world) const {
    const uint32_t bytes = sparse ? 1 : 250;
    const uint32_t apart_ns = sparse ? 800'000 : 0;
    const uint64_t on_link = bytes * 1'000;
    const uint64_t least =
        (kPuts - 1) * std::max<uint64_t>(apart_ns, on_link) + on_link + latency_ns();
    const uint64_t took = nanoseconds_of_puts(world, kPuts, bytes, apart_ns);
    promise(took >= least, fmt::format("the puts took {} ns, and the link {}", took, least));
  }
};

/// Runs a seed over the simulated card, or the software mlx5 card, or over `network`, which
/// registers the arena alone and has a simulated card behind it.
inline void network_seed(
    SeedRun& run, bool mlx5,
    const std::function<MakeNetwork(const SimulatedCard& card)>& network = {}) {
  const auto hosts = run.option("hosts", run.random.between(2, 3));
  const auto each = run.option("ranks per host", run.random.between(1, 2));
  const uint32_t ranks = hosts * each;
  // Only queues of an mlx5 card are shared.
  const uint32_t clauses = kClauses.size() - (mlx5 ? 0 : 1);
  Drawn drawn{.clause = static_cast<Clause>(run.random.below(clauses)),
              .ring_slots = run.random.between(1, kRingSlots),
              .ring_messages = run.random.between(1, 6),
              .bad = static_cast<BadRequest>(run.random.below(kBadRequests)),
              .ending = static_cast<Ending>(run.random.below(kEndings)),
              .blocks = 1u << run.random.below(3),
              .sparse = run.random.chance(512),
              .fixture = {.timeout = {}, .in_arena = run.random.chance(512)}};
  if (network && drawn.clause == Clause::deregistering) drawn.clause = Clause::order;
  run.option("clause", kClauses[static_cast<size_t>(drawn.clause)]);
  if (drawn.clause == Clause::rings) {
    run.option("slots", drawn.ring_slots);
    run.option("messages", drawn.ring_messages);
  }
  if (drawn.clause == Clause::bad_request) run.option("bad", static_cast<uint32_t>(drawn.bad));
  if (drawn.clause == Clause::leaving) run.option("ending", static_cast<uint32_t>(drawn.ending));
  run.option("in arena", drawn.fixture.in_arena);

  const bool paced = drawn.clause == Clause::pace;
  // The wait for the absent rank is shorter than a stall.
  const bool may_stall = !paced && drawn.clause != Clause::absent && run.random.chance(324);
  simulated::Options options{
      .ranks = ranks,
      .hosts = hosts,
      .arena_bytes = size_t{network ? 512u : 256u} << 10,
      .card = {.nap_ns_max = paced ? 0 : run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{1'000'000'000}) : 0,
               .gigabytes_per_s = paced ? Drawn::kGigabytesPerSecond : 0,
               .latency_us = paced ? drawn.latency_ns() * 1e-3 : 0,
               // Counts that soon wrap.
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12)),
               .mlx5_slots =
                   mlx5 ? run.option("slots", 1u << run.random.between(paced ? 3 : 1, 6)) : 0},
      // More queues than blocks fit at once.
      .queues_per_peer =
          run.option("queues", run.random.chance(16) && !network ? 33 : run.random.between(2, 3)),
      .network = network};
  const bool may_stop = drawn.clause == Clause::order || drawn.clause == Clause::flush ||
                        drawn.clause == Clause::rings || drawn.clause == Clause::shared;
  // The stores land: other fates also lose those that an applied signal has released.
  if (may_stop && run.option("stops", run.random.chance(256))) {
    options.stop = simulation::RankStop{
        .rank = run.option("rank", run.random.below(ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 15))),
        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  if (may_stop && !options.stop && run.option("dies", run.random.chance(64)))
    options.card.dies_after = run.option("after", run.random.between(1, 60));
  drawn.loses = options.stop || options.card.dies_after != 0;
  const auto result = simulated::run(run, options, drawn);
  // Where cards have died, ranks miss each other as where a rank has.
  const bool dies = options.card.dies_after != 0;
  result.require_clean_after(dies ? simulation::RankStop{} : options.stop);
}

}  // namespace tokenyard::testing
