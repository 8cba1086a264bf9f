// Suites `low_latency_members` and `low_latency_members_hosts`: a rank dies between two calls, or
// after it has sent for calls that the others have not made. They go on without it, with its
// experts where replicas and empty places are; then a fresh rank takes its slot. Every result is
// exact, every choice without a place is counted, and nothing that the dead rank has sent counts as
// its successor's. In the second suite ranks are on several hosts, and what the dead rank has put
// may land at any time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "expert_parallel/common/expert_map.hpp"
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
  std::vector<uint32_t> host_of;  ///< [ranks] if there are several hosts
  std::vector<uint32_t> sms;      ///< [ranks]
  uint32_t dies = 0;
  uint32_t ahead = 0;       ///< dispatches that the rank sends before it dies, which others lack
  bool is_missed = false;   ///< the others make a batch before they know
  bool at_epoch = false;    ///< the others agree on an epoch when they evict it
  bool has_masked = false;  ///< they have masked it before that
  uint32_t before = 1, without = 1, after = 1;  ///< whole batches
  uint32_t epoch_before = 0;
};

/// Two to four hosts of at most five ranks in all.
std::vector<uint32_t> draw_hosts(SeedRun& run, LowLatencyCase& of) {
  std::vector<uint32_t> host_of;
  const uint32_t hosts = run.random.between(2, run.random.chance(192) ? 4 : 2);
  for (uint32_t host = 0; host < hosts; ++host)
    host_of.insert(host_of.end(), run.random.between(1, hosts > 2 ? 1 : 2), host);
  run.option("host_of", fmt::format("{}", host_of));
  if (run.option("only_put", run.random.chance(256))) of.paths = LowLatencyPaths::put;
  return host_of;
}

Drawn draw(SeedRun& run, bool hosts) {
  Random& random = run.random;
  Drawn drawn;
  LowLatencyCase& of = drawn.of;
  if (hosts) drawn.host_of = draw_hosts(run, of);
  of.shape.ranks = hosts ? static_cast<uint32_t>(drawn.host_of.size())
                         : run.option("ranks", random.between(2, 4));
  const uint32_t each = run.option("places_per_rank", random.between(1, 3));
  of.shape.experts = each * of.shape.ranks;
  const uint32_t experts = run.option("experts", random.between(1, of.shape.experts));
  of.map = draw_map(of.shape.experts, experts, [&](uint32_t end) { return random.below(end); });
  run.option("map", fmt::format("{}", of.map.expert_at));
  of.shape.topk = run.option("topk", random.between(1, std::min(experts, 3u)));
  drawn.sms = draw_small_batches(run, of);
  drawn.dies = run.option("dies", random.below(of.shape.ranks));
  drawn.ahead = run.option("ahead", random.below(3));
  drawn.is_missed = run.option("is_missed", random.chance(512));
  drawn.at_epoch = run.option("at_epoch", random.chance(512));
  drawn.has_masked = run.option("has_masked", random.chance(512));
  drawn.before = run.option("before", random.below(2));
  drawn.without = run.option("without", random.below(3));
  drawn.after = run.option("after", random.between(1, 3));
  drawn.epoch_before = draw_epoch_before(run);
  if (drawn.ahead == 2 && !drawn.is_missed) run.reach("a rank dies two dispatches ahead");
  return drawn;
}

/// The program of one rank, and of its successor.
class Program {
 public:
  Program(World& world, const Drawn& drawn)
      : world_(world),
        drawn_(drawn),
        of_(drawn.of),
        exchange_(std::make_unique<LowLatency>(world, drawn.of.options())) {
    of_.sms = drawn.sms[world.rank()];
    exchange_->on_experts_changed([&](const std::vector<int32_t>& held) { told_ = held; });
  }

  void run() {
    exchange_->set_expert_map(of_.map.expert_at);
    for (uint32_t batch = 0; batch < drawn_.before; ++batch) whole_batch({}, {});
    require(exchange_->failed_ranks().empty(), "somebody was masked before anybody died");
    if (dies()) {
      die();
    } else {
      go_on();
    }
    require(exchange_->expert_map() == drawn_.of.map.expert_at, "the map is not as it was set");
    require_told();
    of_.map = drawn_.of.map;
    of_.seed = drawn_.of.seed + 100;
    for (uint32_t batch = 0; batch < drawn_.after; ++batch) whole_batch({}, {});
    require(exchange_->failed_ranks().empty(), "somebody is masked although all are here");
    exchange_->close();
  }

 private:
  bool dies() const { return world_.rank() == drawn_.dies; }
  void require(bool holds, const std::string& what) const {
    if (!holds) throw WrongBatch(fmt::format("rank {}: {}", world_.rank(), what));
  }
  /// Requires that the hook was called with what this rank holds, or that it holds what it held
  /// before any hook was called.
  void require_told() const {
    const std::vector<int32_t> held = exchange_->held_experts();
    require(told_.empty() ? held == plain() : held == told_, "the hook was told something else");
  }
  std::vector<int32_t> plain() const {
    const Shape& places = drawn_.of.shape;
    std::vector<int32_t> all =
        plain_expert_map(drawn_.of.map.experts, places.experts, places.ranks);
    const auto first = all.begin() + places.first_expert(world_.rank());
    return {first, first + places.local_experts()};
  }

  void whole_batch(const std::set<uint32_t>& absent, const std::set<uint32_t>& without) {
    const std::string text = difference_of_batch(absent, without);
    require(text.empty(), fmt::format("batch {}: {}", of_.seed - drawn_.of.seed, text));
    ++of_.seed;
  }
  std::string difference_of_batch(const std::set<uint32_t>& absent,
                                  const std::set<uint32_t>& without) {
    const std::vector<Tokens> all = of_.draw();
    const Tokens& mine = all[world_.rank()];
    const LowLatencyTokens tokens(world_, of_, of_.given(mine, world_.rank()));
    const LowLatencyCall call{.timeout = kTimeout, .sms = of_.sms, .hook = of_.hooks};
    const LowLatencyReceived received = exchange_->dispatch(tokens.input(), call);
    if (of_.hooks) exchange_->receive(received.handle);
    std::string text = difference_after_dispatch(*exchange_, of_, all, received, absent);
    const TensorView y = exchange_->combine_buffer(received.handle);
    run_experts(*exchange_, of_, all, y, absent);
    const CombineOnDevice combined(*exchange_, of_, mine);
    exchange_->combine(combined.what(y, tokens), received.handle, call);
    if (of_.hooks) exchange_->receive(received.handle);
    return text + difference_after_combine(*exchange_, of_, mine, combined, without);
  }

  /// Sends what nobody may take for its successor's, then is gone. Its successor makes the exchange
  /// anew.
  void die() {
    for (uint32_t sent = 0; sent < drawn_.ahead; ++sent) {
      const Tokens mine = of_.draw()[world_.rank()];
      const LowLatencyTokens tokens(world_, of_, of_.given(mine, world_.rank()));
      // The second one's tokens are others than any that will be sent for its epoch.
      exchange_->dispatch(tokens.input(), {.timeout = kTimeout, .sms = of_.sms, .hook = true});
      await_calls(*exchange_, of_);
      of_.seed += 50;
    }
    await_calls(*exchange_, of_);
    exchange_.reset();
    world_.barrier("it is dead");
    gather(world_, uint32_t{0}, "epochs of the living");
    world_.barrier("all have evicted it");
    world_.barrier("the others have gone on");
    exchange_ = std::make_unique<LowLatency>(world_, drawn_.of.options());
    told_ = exchange_->held_experts();
  }

  void go_on() {
    const std::set<uint32_t> dead{drawn_.dies};
    world_.barrier("it is dead");
    if (drawn_.is_missed) {
      whole_batch(drawn_.ahead > 0 ? std::set<uint32_t>{} : dead, dead);
      for (const FailedRank& masked : exchange_->failed_ranks())
        require(masked.rank == drawn_.dies, fmt::format("rank {} lives", masked.rank));
    }
    if (drawn_.has_masked) exchange_->update_mask(drawn_.dies, true);
    await_calls(*exchange_, of_);
    const uint32_t epoch =
        gather(world_, exchange_->epoch(), "epochs of the living")[drawn_.dies == 0 ? 1 : 0];
    exchange_->evict({drawn_.dies}, drawn_.at_epoch ? std::optional(epoch + 2) : std::nullopt);
    // The dead rank's thread stands in for it: a world has no barrier of some ranks.
    world_.barrier("all have evicted it");
    std::vector<bool> living(world_.size(), true);
    living[drawn_.dies] = false;
    of_.map.expert_at = spread_lost_experts(drawn_.of.map.expert_at, living);
    of_.map.without = dead;
    require(exchange_->expert_map() == of_.map.expert_at, "experts are not spread as said");
    require_told();
    for (uint32_t batch = 0; batch < drawn_.without; ++batch) whole_batch(dead, dead);
    await_calls(*exchange_, of_);
    world_.barrier("the others have gone on");
    const std::vector<uint32_t> admitted = exchange_->admit();
    require(admitted == std::vector{drawn_.dies}, "somebody else was admitted");
  }

  World& world_;
  const Drawn& drawn_;
  LowLatencyCase of_;
  std::unique_ptr<LowLatency> exchange_;
  std::vector<int32_t> told_;
};

constexpr size_t kArenaBytes = size_t{2} << 20;

void run_drawn(SeedRun& run, const Drawn& drawn, simulated::Options options) {
  options.ranks = drawn.of.shape.ranks;
  options.host_of = drawn.host_of;
  options.arena_bytes = kArenaBytes;
  options.timeout = kWorldTimeout;
  options.epoch_before = drawn.epoch_before;
  simulated::run(run, options, [&](World& world) { Program(world, drawn).run(); }).require_clean();
}

void run_suite(SeedRun& run) {
  run_drawn(run, draw(run, false), {});
}

void run_between_hosts(SeedRun& run) {
  const Drawn drawn = draw(run, true);
  run_drawn(run, drawn,
            {.card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
                      .stall_ns_max =
                          run.random.chance(128) ? run.option("stall", uint32_t{5'000'000}) : 0},
             .queues_per_peer = run.option("queues", run.random.between(1, 2)),
             .within_hosts = drawn.of.paths == LowLatencyPaths::put});
}

const bool registered =
    simulation::add_suite({.name = "low_latency_members",
                           .what = "ranks that die are evicted, and fresh ones take their slots",
                           .run = run_suite,
                           .reaches = {{"a rank dies two dispatches ahead", 60},
                                       {"epochs wrap", 100},
                                       {"epochs pass a half", 60}},
                           .seeds = 1000});
const bool registered_hosts =
    simulation::add_suite({.name = "low_latency_members_hosts",
                           .what = "the same between hosts, where the dead rank's puts land late",
                           .run = run_between_hosts,
                           .reaches = {{"a rank dies two dispatches ahead", 60},
                                       {"epochs wrap", 100},
                                       {"epochs pass a half", 60}},
                           .seeds = 300});

}  // namespace
}  // namespace tokenyard::test
