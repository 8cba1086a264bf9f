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
  mistake,
  shared
};
inline constexpr std::array kClauses{"order",         "flush",   "rings", "absent",  "bad request",
                                     "deregistering", "leaving", "pace",  "mistake", "shared"};
inline constexpr std::array<std::string_view, kMistakes> kNoticed{
    "a flush taken for a landing was noticed", "a landing taken for a flush was noticed"};

/// Runs one clause as a rank.
struct Drawn {
  Clause clause;
  uint32_t ring_slots, ring_messages;
  BadRequest bad;
  Ending ending;
  Mistake mistake;
  uint32_t blocks;  ///< of the warps that share a queue
  bool sparse;      ///< puts are posted while the latency of others passes
  NetworkFixture::Options fixture;

  void operator()(World& world) const {
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
      case Clause::mistake:
        return makes_mistake(world, mistake);
      case Clause::shared:
        return warps_share_a_queue(world, blocks, kSharers / blocks);
    }
  }

  // Four puts at 1 us per byte: one behind the other on the link, or posted while the latency of
  // others passes. It is paid once.
  static constexpr uint32_t kPuts = 4;
  static constexpr double kGigabytesPerSecond = 1e-3;
  double latency_us() const { return sparse ? 2000 : 100; }
  void keeps_pace(World& world) const {
    const uint32_t bytes = sparse ? 1 : 250;
    const uint32_t apart_ns = sparse ? 800'000 : 0;
    const double on_link = bytes / (kGigabytesPerSecond * 1e9);
    const double least =
        (kPuts - 1) * std::max(apart_ns * 1e-9, on_link) + on_link + latency_us() * 1e-6;
    const double seconds = seconds_of_puts(world, kPuts, bytes, apart_ns);
    // Naps may end a little late. A latency that is paid twice makes sparse puts 1.36 times as
    // long.
    promise(seconds >= least && seconds < 1.35 * least,
            fmt::format("the puts took {:.1f} us, not {:.1f}", seconds * 1e6, least * 1e6));
  }
};

/// Notes whether a wrong kernel showed, as a race or in data.
inline void note_mistake(SeedRun& run, const simulated::Result& result, Mistake mistake) {
  bool noticed = !result.findings.empty();
  for (const std::exception_ptr& thrown : result.thrown) noticed |= thrown != nullptr;
  if (noticed) run.reach(kNoticed[static_cast<size_t>(mistake)]);
}

/// Runs a seed over the simulated card, or the software mlx5 card.
inline void network_seed(SeedRun& run, bool mlx5) {
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
              .mistake = static_cast<Mistake>(run.random.below(kMistakes)),
              .blocks = 1u << run.random.below(3),
              .sparse = run.random.chance(512),
              .fixture = {.timeout = {}, .in_arena = run.random.chance(512)}};
  run.option("clause", kClauses[static_cast<size_t>(drawn.clause)]);
  if (drawn.clause == Clause::rings) {
    run.option("slots", drawn.ring_slots);
    run.option("messages", drawn.ring_messages);
  }
  if (drawn.clause == Clause::bad_request) run.option("bad", static_cast<uint32_t>(drawn.bad));
  if (drawn.clause == Clause::leaving) run.option("ending", static_cast<uint32_t>(drawn.ending));
  if (drawn.clause == Clause::mistake) run.option("mistake", static_cast<uint32_t>(drawn.mistake));
  run.option("in arena", drawn.fixture.in_arena);

  const bool paced = drawn.clause == Clause::pace;
  // The wait for the absent rank is shorter than a stall.
  const bool may_stall = !paced && drawn.clause != Clause::absent && run.random.chance(324);
  simulated::Options options{
      .ranks = ranks,
      .hosts = hosts,
      .arena_bytes = 256 << 10,
      .card = {.nap_ns_max = paced ? 0 : run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{1'000'000'000}) : 0,
               .gigabytes_per_s = paced ? Drawn::kGigabytesPerSecond : 0,
               .latency_us = paced ? drawn.latency_us() : 0,
               // Counts that soon wrap.
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12)),
               .mlx5_slots =
                   mlx5 ? run.option("slots", 1u << run.random.between(paced ? 3 : 1, 6)) : 0},
      // More queues than blocks fit at once.
      .queues_per_peer =
          run.option("queues", run.random.chance(16) ? 33 : run.random.between(2, 3))};
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
  const auto result = simulated::run(run, options, drawn);
  if (drawn.clause == Clause::mistake) return note_mistake(run, result, drawn.mistake);
  // Where cards have died, ranks miss each other as where a rank has.
  const bool dies = options.card.dies_after != 0;
  result.require_clean_after(dies ? simulation::RankStop{} : options.stop);
}

}  // namespace tokenyard::testing
