// Suite `low_latency`: batches under adversarial delivery, schedules and memory; every result is
// compared bit for bit. Covers hooks, two batches in progress, payloads that look like empty
// staging, and ranks that stop midway: the others must then be exact without them, and mask no
// other rank.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

/// How a pair of batches is made, and a third one beside it.
enum class Pattern : uint32_t { one_after_the_other, hooks, two_under_way, interleaved };
constexpr uint32_t kPatterns = 3;  ///< of pairs

struct Drawn {
  LowLatencyCase first;
  std::vector<uint32_t> sms;                ///< [ranks]
  std::vector<bool> has_third;              ///< [pairs]
  std::vector<std::vector<Pattern>> pairs;  ///< [ranks][pairs]
  uint32_t epoch_before = 0;
  std::vector<uint32_t> early_weights;  ///< [batches], each as in LowLatencyCase
  bool all_ones = false;                ///< the payload looks like empty staging
  bool measured = false;
  /// Deadline shorter than a healthy exchange may take, if set: with two ranks, each may find the
  /// other missing at any step.
  std::optional<std::chrono::nanoseconds> deadline;
  std::optional<uint32_t> absent;  ///< rank that makes no calls and that the others mask at once
  bool slot_is_empty = false;      ///< no process fills that rank's slot, so it is masked already
};

/// Far above the slowest delivery that a seed draws: only silent ranks may be masked.
constexpr std::chrono::milliseconds kTimeout{100};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  LowLatencyCase& first = drawn.first;
  Shape& shape = first.shape;
  const bool impatient = random.chance(256);
  const uint32_t ranks = random.chance(64) ? random.between(5, 8) : random.between(1, 4);
  shape.ranks = run.option("ranks", impatient ? 2 : ranks);
  // Usually equally many on each rank.
  const uint32_t experts = random.chance(256) ? random.between(shape.ranks, 3 * shape.ranks)
                                              : shape.ranks * random.between(1, 3);
  shape.experts = run.option("experts", experts);
  // Which rank finds another missing, and when, decides where tokens go: not with a map.
  const bool mapped = run.option("mapped", !impatient && random.chance(256));
  if (mapped) {
    const uint32_t each = random.between(1, 4);
    const uint32_t named = random.between(1, each * shape.ranks);
    shape.experts = each * shape.ranks;
    first.map = draw_map(shape.experts, named, [&](uint32_t end) { return random.below(end); });
    run.option("map", fmt::format("{} of {}", first.map.expert_at, named));
  }
  const uint32_t named = first.map.named(shape).experts;
  const uint32_t most = std::min(named, random.chance(64) ? 12u : 4u);
  // With eight choices, ids are read in pieces.
  const uint32_t topk = named >= 8 && random.chance(200) ? 8 : random.between(1, most);
  shape.topk = run.option("topk", topk);
  shape.hidden = run.option("hidden", 32 * (random.chance(96) ? random.between(8, 40) : 1));
  // Enough for warps to have several turns of ids and weights, and for blocks to have several
  // tokens.
  const uint32_t tokens_end = shape.ranks <= 3 && random.chance(impatient ? 768 : 96) ? 14 : 4;
  // So many that blocks share the sends of one token.
  const bool many_blocks =
      shape.ranks == 2 && tokens_end == 4 && random.chance(impatient ? 512 : 128);
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    first.tokens.push_back(random.chance(128) ? 0 : random.below(tokens_end));
    drawn.sms.push_back(many_blocks ? random.between(8, 20) : random.between(2, 4));
  }
  run.option("tokens", fmt::format("{}", first.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  first.picking.none = run.option("none", random.below(3) * 0.25);
  first.picking.one_expert = run.option("one_expert", random.chance(64));
  first.rows = static_cast<LowLatencyRows>(run.option("rows", random.below(4)));
  first.given_fp8 =
      run.option("given_fp8", first.rows != LowLatencyRows::bf16 && random.chance(256));
  first.logfmt = run.option("logfmt", random.chance(192));
  first.seed = static_cast<uint32_t>(random.next());
  drawn.all_ones = run.option("all_ones", random.chance(256));
  drawn.measured = run.option("measured", random.chance(192));
  if (random.chance(192)) {
    first.mistaken = run.option("mistaken", random.below(shape.ranks));
    first.picking.none = std::max(first.picking.none, 0.25);
  }
  // Usually such that it passes while ids arrive: then some blocks have them and others do not.
  if (impatient)
    drawn.deadline = std::chrono::nanoseconds(
        run.option("deadline_ns",
                   random.chance(256) ? 1u << random.between(8, 16) : random.between(2, 10) << 10));
  else if (shape.ranks > (mapped ? 2u : 1u) && random.chance(192)) {
    // The map in effect spreads the experts of an empty slot: suite low_latency_members has maps
    // of ranks that are gone.
    drawn.slot_is_empty =
        run.option("slot_is_empty", !mapped && (shape.ranks == 2 || random.chance(640)));
    drawn.absent = run.option("absent", random.below(shape.ranks));
    if (drawn.slot_is_empty) run.reach("a slot is empty");
  }
  if (mapped && drawn.absent) {
    first.map.without = {*drawn.absent};
    run.reach("a map, and a rank that is masked");
  }
  // Ranks need not pair their batches alike: one that receives later reads later what it was sent.
  const bool alike = run.option("alike", random.chance(768));
  const auto pattern = [&] { return static_cast<Pattern>(random.below(kPatterns)); };
  drawn.pairs.resize(shape.ranks);
  // A rank that has a dispatch's rows knows that their sender has emptied what it received two
  // combines earlier. Reading `drained` adds only memory order, and few batches reveal its absence.
  const uint32_t pairs = random.between(1, 4);
  uint32_t batches = 0;
  for (uint32_t i = 0; i < pairs; ++i) {
    const bool has_third = random.chance(192);
    const Pattern first_rank = has_third ? Pattern::interleaved : pattern();
    for (uint32_t rank = 0; rank < shape.ranks; ++rank)
      drawn.pairs[rank].push_back(alike || rank == 0 ? first_rank : pattern());
    drawn.has_third.push_back(has_third);
    batches += has_third ? 3 : 2;
  }
  run.option("has_third", fmt::format("{}", drawn.has_third));
  if (std::count(drawn.has_third.begin(), drawn.has_third.end(), true) > 0)
    run.reach("a third dispatch before the second is received");
  drawn.epoch_before = draw_epoch_before(run);
  // Each rank chooses for itself, batch by batch.
  const bool some_early = random.chance(640);
  for (uint32_t batch = 0; batch < batches; ++batch)
    drawn.early_weights.push_back(!some_early          ? 0
                                  : random.chance(256) ? ~0u
                                                       : random.below(1 << shape.ranks));
  run.option("early_weights", fmt::format("{}", drawn.early_weights));
  return drawn;
}

/// Measurements of a rank's calls, if they are requested.
class Measures {
 public:
  Measures(World& world, const Shape& shape)
      : rank_(world.rank()),
        rows_(accelerator_of(world), std::vector<int32_t>(shape.local_experts(world.rank()))),
        waited_(accelerator_of(world), std::vector<uint64_t>(shape.ranks)),
        spans_(accelerator_of(world), {kNever, 0, kNever, 0}),
        expected_rows_(shape.local_experts(world.rank())) {}

  /// Requests measurements from a batch whose calls have not been made.
  void ask(SurvivorBatch& batch, const LowLatencyCase& of) {
    batch.call.rows_total = rows_.view({expected_rows_.size()});
    batch.call.waited_cycles = waited_.view({of.shape.ranks});
    batch.call.span_ns = spans_.view({2, 2});
    const std::vector<int32_t> counts = expected_batch(of.shape, of.draw(), rank_).counts;
    for (size_t expert = 0; expert < counts.size(); ++expert)
      expected_rows_[expert] += counts[expert];
  }
  /// Checks the measurements after the last batch.
  void require_true(bool all_live) const {
    const std::vector<uint64_t> spans = spans_.read();
    const std::vector<uint64_t> waited = waited_.read();
    std::string text = all_live ? difference("rows_total", rows_.read(), expected_rows_) : "";
    if (all_live && std::count(waited.begin(), waited.end(), 0) != 0)
      text += "no time until a rank's ids came; ";
    if (!(spans[0] <= spans[1])) text += "calls that end before they begin; ";
    if (spans[2] > spans[3] && (spans[2] != kNever || spans[3] != 0))
      text += "receives that end before they begin; ";
    if (!text.empty()) throw WrongBatch(fmt::format("rank {} measures {}", rank_, text));
  }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint32_t rank_;
  DeviceArray<int32_t> rows_;
  DeviceArray<uint64_t> waited_, spans_;
  std::vector<int32_t> expected_rows_;
};

/// The program of one rank.
void exchange_on(World& world, const Drawn& drawn, std::optional<uint32_t> stopped) {
  LowLatency exchange(world, drawn.first.options());
  LowLatencyCase of = drawn.first;
  of.sms = drawn.sms[world.rank()];
  if (of.map.given()) exchange.set_expert_map(of.map.expert_at);
  if (drawn.deadline) stopped = 1 - world.rank();
  if (drawn.absent) {
    if (world.rank() == *drawn.absent) return;
    stopped = drawn.absent;
    if (!drawn.slot_is_empty) exchange.update_mask(*stopped, true);
  }
  Survivor survivor(exchange, stopped);
  Measures measures(world, of.shape);
  auto early_weights = drawn.early_weights.begin();
  const auto next_batch = [&] {
    of.early_weights = *early_weights++;
    of.seed += 1;
    return of;
  };
  const auto make = [&] {
    const LowLatencyCase of_batch = next_batch();
    auto batch = std::make_unique<SurvivorBatch>(survivor, of_batch, drawn.all_ones);
    if (drawn.measured) measures.ask(*batch, of_batch);
    batch->call.timeout = drawn.deadline;
    return batch;
  };
  const auto in_full = [](SurvivorBatch& batch, bool hooks) {
    batch.dispatch(hooks);
    if (hooks) batch.receive_dispatch();
    batch.combine(hooks);
    if (hooks) batch.receive_combine();
  };
  for (size_t pair = 0; pair < drawn.has_third.size(); ++pair) {
    const Pattern pattern = drawn.pairs[world.rank()][pair];
    const auto one = make(), other = make(), third = drawn.has_third[pair] ? make() : nullptr;
    if (pattern == Pattern::interleaved) {
      interleave(*one, *other, *third);
      continue;
    }
    if (pattern == Pattern::two_under_way) {
      overlap(*one, *other);
    } else {
      in_full(*one, pattern == Pattern::hooks);
      in_full(*other, false);
    }
    if (third) in_full(*third, false);
  }
  survivor.require_only_the_stopped_masked();
  if (drawn.measured) measures.require_true(!stopped);
}

constexpr size_t kArenaBytes = size_t{2} << 20;
/// Approximate steps of one rank per pair of batches.
constexpr uint32_t kStepsARank = 12000;

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  simulated::Options options{.ranks = drawn.first.shape.ranks,
                             .arena_bytes = kArenaBytes,
                             .timeout = kTimeout,
                             .epoch_before = drawn.epoch_before};
  if (drawn.slot_is_empty) options.absent = {*drawn.absent};
  std::optional<uint32_t> stopped;
  if (options.ranks > 1 && !drawn.deadline && !drawn.absent && !drawn.first.map.given() &&
      run.random.chance(320)) {
    // The number of steps of the run is unknown. One of its batches is as good as another; a stop
    // drawn at any scale comes near the beginning.
    const auto pairs = static_cast<uint32_t>(drawn.pairs.front().size());
    const uint32_t most = run.random.chance(768) ? options.ranks * pairs * kStepsARank
                                                 : 1u << run.random.between(8, 15);
    const uint64_t after = run.random.below(most);
    stopped = run.option("stops", run.random.below(options.ranks));
    options.stop =
        simulation::RankStop{.rank = *stopped,
                             .after_steps = run.option("after_steps", after),
                             .fate = static_cast<simulation::InFlight>(run.random.below(3))};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result =
      simulated::run(run, options, [&](World& world) { exchange_on(world, drawn, stopped); });
  // Objects are created collectively: without that rank there is none.
  result.require_clean_after(options.stop);
}

/// Deadline::fail publishes its report this way, and dispatch its errors about ids.
constexpr const char* kOwnHost =
    "is between a rank's kernel and its own host code, which is not instrumented";
constexpr const char* kLongerTimeout =
    "an old heartbeat taken for a new one lengthens a wait, to at most kTimesLate timeouts";
constexpr const char* kOnlyReported =
    "a combine adds the waits of its blocks' first threads, which may be nothing";
constexpr const char* kEmptiedLater =
    "places of a token not known to be finished are emptied after the vote, as others are";
constexpr const char* kEarlyEnd =
    "a block's end is recorded by its first thread, which may finish early";
constexpr const char* kMoreHeartbeats =
    "heartbeats at every check are more than needed, and never fewer";

const bool registered = simulation::add_suite(
    {.name = "low_latency",
     .what = "batches of few tokens, hooks and masks, exact under adversarial delivery",
     .run = run_suite,
     .explained = {{simulation::Fault::release_made_relaxed, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "memory.hpp:51", kOwnHost},
                   {simulation::Fault::sys_made_gpu, "ids_kernel.hpp:60", kOwnHost},
                   {simulation::Fault::release_made_relaxed, "ids_kernel.hpp:68", kOwnHost},
                   {simulation::Fault::barrier_removed, "call_kernel.hpp:194", kEarlyEnd},
                   {simulation::Fault::store_dropped, "add_sums_kernel.hpp:146", kEmptiedLater},
                   {simulation::Fault::store_dropped, "add_sums_kernel.hpp:278", kOnlyReported},
                   {simulation::Fault::store_dropped, "liveness_kernel.hpp:46", kLongerTimeout},
                   {simulation::Fault::store_dropped, "liveness_kernel.hpp:59", kMoreHeartbeats}},
     .reaches = {{"a third dispatch before the second is received", 40},
                 {"a map, and a rank that is masked", 100},
                 {"a slot is empty", 120},
                 {"epochs wrap", 100},
                 {"epochs pass a half", 60}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
