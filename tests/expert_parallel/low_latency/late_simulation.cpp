// Suite `low_latency_late`: a rank misses the deadline, in a dispatch or in a combine. The others
// must be exact without it while it still sends, whatever it sends. They must be exact with it once
// all have restarted at an agreed epoch, even if ranks have sent batches meanwhile that no rank
// received.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/low_latency/small_batches.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::Random;
using simulation::SeedRun;

struct Drawn {
  LowLatencyCase of;
  std::vector<uint32_t> sms;  ///< [ranks]
  uint32_t late = 0;
  bool in_combine = false;                      ///< late in the combine; else in the dispatch
                                                ///< before it
  uint32_t before = 1, without = 1, after = 1;  ///< whole batches
  uint32_t abandons = 0;  ///< bit r: rank r sends a batch before the restart and drops it
  uint32_t epoch_before = 0;
};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  LowLatencyCase& of = drawn.of;
  of.shape.ranks = run.option("ranks", random.between(2, 3));
  of.shape.experts = run.option("experts", random.between(of.shape.ranks, 2 * of.shape.ranks));
  if (run.option("mapped", random.chance(384))) {
    of.shape.experts = of.shape.ranks * random.between(1, 3);
    const uint32_t experts = random.between(1, of.shape.experts);
    of.map = draw_map(of.shape.experts, experts, [&](uint32_t end) { return random.below(end); });
    run.option("map", fmt::format("{} of {}", of.map.expert_at, experts));
  }
  const uint32_t named = of.map.named(of.shape).experts;
  of.shape.topk = run.option("topk", random.between(1, std::min(named, 3u)));
  drawn.sms = draw_small_batches(run, of);
  if (random.chance(256)) {
    of.mistaken = run.option("mistaken", random.below(of.shape.ranks));
    of.picking.none = 0.25;
  }
  drawn.late = run.option("late", random.below(of.shape.ranks));
  drawn.in_combine = run.option("in_combine", random.chance(512));
  drawn.before = run.option("before", random.below(2));
  drawn.without = run.option("without", random.below(3));
  drawn.after = run.option("after", random.between(1, 2));
  drawn.abandons = run.option("abandons", random.below(1 << of.shape.ranks));
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

/// The program of one rank.
class Program {
 public:
  Program(World& world, const Drawn& drawn)
      : world_(world), drawn_(drawn), of_(drawn.of), exchange_(world, drawn.of.options()) {
    of_.sms = drawn.sms[world.rank()];
  }

  void run() {
    if (of_.map.given()) exchange_.set_expert_map(of_.map.expert_at);
    for (uint32_t batch = 0; batch < drawn_.before; ++batch) whole_batch({});
    if (!exchange_.failed_ranks().empty())
      throw WrongBatch("somebody was masked before anybody was late");
    late_batch();
    if (!is_late()) {
      of_.map.without = {drawn_.late};
      for (uint32_t batch = 0; batch < drawn_.without; ++batch) whole_batch({drawn_.late});
    }
    if (drawn_.abandons >> world_.rank() & 1) abandon_batch();
    await_calls(exchange_, of_);
    exchange_.restart(agreed_epoch(exchange_));
    world_.barrier("all have restarted");
    of_.seed = drawn_.of.seed + 100;
    of_.map.without.clear();
    for (uint32_t batch = 0; batch < drawn_.after; ++batch) whole_batch({});
    if (!exchange_.failed_ranks().empty())
      throw WrongBatch("somebody was masked after the restart");
    exchange_.close();
  }

 private:
  bool is_late() const { return world_.rank() == drawn_.late; }
  void require_none(const std::string& difference) const {
    if (!difference.empty())
      throw WrongBatch(fmt::format("rank {} batch {}: {}", world_.rank(), of_.seed - drawn_.of.seed,
                                   difference));
  }
  /// On the late rank, returns once the others have passed their deadlines.
  void await_their_timeout() { world_.barrier("the others have given up"); }

  void whole_batch(const std::set<uint32_t>& without) {
    require_none(difference_after_batch(exchange_, of_, of_.draw(), without));
    ++of_.seed;
  }

  void abandon_batch() {
    const Tokens mine = of_.draw()[world_.rank()];
    const LowLatencyTokens tokens(world_, of_, of_.given(mine, world_.rank()));
    exchange_.dispatch(tokens.input(), {.timeout = kTimeout, .sms = of_.sms, .hook = true});
    await_calls(exchange_, of_);
  }

  void late_batch() {
    const std::vector<Tokens> all = of_.draw();
    const Tokens& mine = all[world_.rank()];
    const LowLatencyTokens tokens(world_, of_, of_.given(mine, world_.rank()));
    const std::set<uint32_t> without{drawn_.late};
    const std::set<uint32_t> absent = drawn_.in_combine ? std::set<uint32_t>{} : without;
    const LowLatencyCall call{.timeout = kTimeout, .sms = of_.sms, .hook = of_.hooks};
    const auto give_up = [&](bool combines) {
      if (drawn_.in_combine == combines) await_their_timeout();
    };
    if (is_late()) give_up(false);
    const LowLatencyReceived received = exchange_.dispatch(tokens.input(), call);
    if (of_.hooks) exchange_.receive(received.handle);
    await_calls(exchange_, of_);
    // The late rank may or may not receive data that the others sent before they gave up.
    if (!is_late())
      require_none(difference_after_dispatch(exchange_, of_, all, received, absent));
    else if (drawn_.in_combine)
      require_none(difference_after_dispatch(exchange_, of_, all, received));
    if (!is_late()) give_up(false);
    if (is_late()) give_up(true);
    const TensorView y = exchange_.combine_buffer(received.handle);
    run_experts(exchange_, of_, all, y, absent);
    const CombineOnDevice combined(exchange_, of_, mine);
    exchange_.combine(combined.what(y, tokens), received.handle, call);
    if (of_.hooks) exchange_.receive(received.handle);
    await_calls(exchange_, of_);
    if (!is_late()) {
      require_none(difference_after_combine(exchange_, of_, mine, combined, without));
      for (const FailedRank& masked : exchange_.failed_ranks())
        if (masked.rank != drawn_.late)
          throw WrongBatch(fmt::format("rank {} masks rank {}, which is not late: {}",
                                       world_.rank(), masked.rank, masked.phase));
      // A rank that needed none of the late rank's sums has not noticed.
      exchange_.update_mask(drawn_.late, true);
      give_up(true);
    }
    ++of_.seed;
  }

  World& world_;
  const Drawn& drawn_;
  LowLatencyCase of_;
  LowLatency exchange_;
};

constexpr size_t kArenaBytes = size_t{2} << 20;

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const simulated::Options options{.ranks = drawn.of.shape.ranks,
                                   .arena_bytes = kArenaBytes,
                                   .timeout = kWorldTimeout,
                                   .epoch_before = drawn.epoch_before};
  simulated::run(run, options, [&](World& world) { Program(world, drawn).run(); }).require_clean();
}

const bool registered = simulation::add_suite(
    {.name = "low_latency_late",
     .what = "ranks that are late are masked, and come back at an epoch agreed on",
     .run = run_suite,
     .reaches = {{"epochs wrap", 100}, {"epochs pass a half", 60}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
