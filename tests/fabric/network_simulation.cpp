/// Suite `network`: the contract of networks over the simulated card, under the memory model.
#include "fabric/network_contract.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::testing {
namespace {

using simulation::Fault;
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
  mistake
};
constexpr std::array kClauses{"order",         "flush",   "rings", "absent", "bad request",
                              "deregistering", "leaving", "pace",  "mistake"};
constexpr std::array<std::string_view, kMistakes> kNoticed{
    "a flush taken for a landing was noticed", "a landing taken for a flush was noticed"};

/// Runs one clause as a rank.
struct Drawn {
  Clause clause;
  uint32_t ring_slots, ring_messages;
  BadRequest bad;
  Ending ending;
  Mistake mistake;
  bool sparse;  ///< puts are posted while the latency of others passes
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
    }
  }

  // Four puts at 1 us per byte, and 100 us of latency, which is paid once.
  static constexpr uint32_t kPuts = 4;
  static constexpr double kGigabytesPerSecond = 1e-3, kLatencyUs = 100;
  void keeps_pace(World& world) const {
    const uint32_t bytes = sparse ? 1 : 250;
    const uint32_t apart_ns = sparse ? 40'000 : 0;
    const double on_link = bytes / (kGigabytesPerSecond * 1e9);
    const double least = (kPuts - 1) * std::max(apart_ns * 1e-9, on_link) + on_link +
                         kLatencyUs * 1e-6;
    const double seconds = seconds_of_puts(world, kPuts, bytes, apart_ns);
    promise(seconds >= least && seconds < 1.2 * least,
            fmt::format("the puts took {:.1f} us, not {:.1f}", seconds * 1e6, least * 1e6));
  }
};

/// Notes whether a wrong kernel showed, as a race or in data.
void note_mistake(SeedRun& run, const simulated::Result& result, Mistake mistake) {
  bool noticed = !result.findings.empty();
  for (const std::exception_ptr& thrown : result.thrown) noticed |= thrown != nullptr;
  if (noticed) run.reach(kNoticed[static_cast<size_t>(mistake)]);
}

void network(SeedRun& run) {
  const auto hosts = run.option("hosts", run.random.between(2, 3));
  const auto each = run.option("ranks per host", run.random.between(1, 2));
  const uint32_t ranks = hosts * each;
  Drawn drawn{.clause = static_cast<Clause>(run.random.below(kClauses.size())),
              .ring_slots = run.random.between(1, kRingSlots),
              .ring_messages = run.random.between(1, 6),
              .bad = static_cast<BadRequest>(run.random.below(kBadRequests)),
              .ending = static_cast<Ending>(run.random.below(kEndings)),
              .mistake = static_cast<Mistake>(run.random.below(kMistakes)),
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
               .latency_us = paced ? Drawn::kLatencyUs : 0,
               // Counts that soon wrap.
               .first = run.option("first", 0 - run.random.below(2) * run.random.below(12))},
      // More queues than blocks fit at once.
      .queues_per_peer =
          run.option("queues", run.random.chance(16) ? 33 : run.random.between(2, 3))};
  const bool may_stop = drawn.clause == Clause::order || drawn.clause == Clause::flush ||
                        drawn.clause == Clause::rings;
  // The stores land: other fates also lose those that an applied signal has released.
  if (may_stop && run.option("stops", run.random.chance(256))) {
    options.stop = simulation::RankStop{
        .rank = run.option("rank", run.random.below(ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(8, 15))),
        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const auto result = simulated::run(run, options, drawn);
  if (drawn.clause == Clause::mistake) return note_mistake(run, result, drawn.mistake);
  result.require_clean_after(options.stop);
}

constexpr const char* kReport =
    "polls the abort flag or writes the report, which the host reads only after the kernel";
constexpr const char* kOneRank =
    "the card is simulated by a kernel of the same rank, which gpu scope includes; a real card is "
    "outside";
constexpr const char* kMessage =
    "a rank learns a key by a message between hosts, which orders the region before it";
constexpr const char* kGone = "asks whether a rank is gone, and no data depends on the answer";

const bool registered = simulation::add_suite(
    {.name = "network",
     .what = "puts and signals between hosts",
     .run = network,
     .explained = {{Fault::release_made_relaxed, "memory.hpp:51", kReport},
                   {Fault::sys_made_gpu, "memory.hpp:51", kReport},
                   {Fault::release_made_relaxed, "gate_kernel.hpp:19", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:19", kMessage},
                   {Fault::sys_made_gpu, "gate_kernel.hpp:11", kGone},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:262", kMessage},
                   {Fault::sys_made_gpu, "network.hpp:180", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:190", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:200", kOneRank},
                   {Fault::sys_made_gpu, "network.hpp:204", kOneRank},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:115", kOneRank},
                   {Fault::sys_made_gpu, "nic_kernel.hpp:370", kOneRank}},
     .reaches = {{std::string(kNoticed[0]), 300}, {std::string(kNoticed[1]), 300}},
     .seeds = 1000});

}  // namespace
}  // namespace tokenyard::testing
