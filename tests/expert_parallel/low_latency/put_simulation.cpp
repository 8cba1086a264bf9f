// Suite `low_latency_put`: batches of few tokens between hosts of one to three ranks, and by put
// within a host, over the simulated network, which lands bytes as late, and in as wrong an order,
// as a network may. Every result is compared bit for bit. In some runs a rank stops midway, or a
// deadline is so short that messages come too late, after which all go on from an agreed epoch: the
// others must then be exact, and nothing of an older epoch may be taken.
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

/// How a pair of batches is made.
enum class Pattern : uint32_t { one_after_the_other, hooks, overlapped };
constexpr uint32_t kPatterns = 3;

struct Drawn {
  LowLatencyCase first;
  std::vector<uint32_t> host_of, sms;  ///< [ranks]
  std::vector<Pattern> pairs;
  std::vector<uint32_t> early_weights;  ///< [batches], each as in LowLatencyCase
  uint32_t epoch_before = 0;
  bool all_ones = false;  ///< the payload looks like empty staging
  /// Of a first pair, whose results do not matter: shorter than messages may take.
  std::optional<std::chrono::nanoseconds> hasty;
};

/// Far above the slowest delivery that a seed draws: only silent ranks may be masked.
constexpr std::chrono::milliseconds kTimeout{400};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  LowLatencyCase& of = drawn.first;
  const uint32_t hosts = random.between(2, random.chance(192) ? 4 : 2);
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t left = random.between(1, hosts > 2            ? 1
                                           : random.chance(192) ? 3
                                                                : 2);
         left > 0; --left)
      drawn.host_of.push_back(host);
  run.option("host_of", fmt::format("{}", drawn.host_of));
  if (run.option("only_put", random.chance(256))) of.paths = LowLatencyPaths::put;
  Shape& shape = of.shape;
  shape.ranks = static_cast<uint32_t>(drawn.host_of.size());
  shape.experts = run.option("experts", shape.ranks * random.between(1, 2) + random.below(2));
  shape.topk = run.option("topk", random.between(1, std::min(shape.experts, 4u)));
  shape.hidden = run.option("hidden", 32 * (random.chance(96) ? random.between(8, 20) : 1));
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    of.tokens.push_back(random.chance(128) ? 0 : random.below(random.chance(64) ? 40 : 4));
    drawn.sms.push_back(random.between(2, 3));
  }
  run.option("tokens", fmt::format("{}", of.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  of.picking.none = run.option("none", random.below(3) * 0.25);
  of.picking.one_expert = run.option("one_expert", random.chance(64));
  of.rows = static_cast<LowLatencyRows>(run.option("rows", random.below(4)));
  of.logfmt = run.option("logfmt", random.chance(192));
  of.seed = static_cast<uint32_t>(random.next());
  drawn.all_ones = run.option("all_ones", random.chance(256));
  const bool some_early = random.chance(640);
  for (uint32_t pairs = random.between(1, 3); pairs > 0; --pairs) {
    drawn.pairs.push_back(static_cast<Pattern>(random.below(kPatterns)));
    for (uint32_t batch = 0; batch < 2; ++batch)
      drawn.early_weights.push_back(!some_early          ? 0
                                    : random.chance(256) ? ~0u
                                                         : random.below(1 << shape.ranks));
  }
  run.option("pairs", fmt::format("{}", drawn.pairs.size()));
  run.option("early_weights", fmt::format("{}", drawn.early_weights));
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

/// Makes two batches that no deadline allows to be exact, then counts anew from an epoch beyond
/// them, in messages of which some may still be under way.
void be_hasty(LowLatency& exchange, const Drawn& drawn) {
  World& world = exchange.world();
  LowLatencyCase of = drawn.first;
  of.sms = drawn.sms[world.rank()];
  for (uint32_t batch = 0; batch < 2; ++batch) {
    of.seed += 1000;
    const std::vector<Tokens> all = of.draw();
    const Tokens& mine = all[world.rank()];
    const LowLatencyTokens tokens(world, of, mine);
    const LowLatencyCall call{.timeout = drawn.hasty, .sms = of.sms};
    const LowLatencyReceived received = exchange.dispatch(tokens.input(), call);
    const CombineOnDevice combined(exchange, of, mine);
    exchange.combine(combined.what(exchange.combine_buffer(received.handle), tokens),
                     received.handle, call);
    exchange.wait();
  }
  uint32_t last = exchange.epoch();
  for (const auto& bytes :
       world.all_gather(std::as_bytes(std::span(&last, 1)), "epochs of hasty calls")) {
    uint32_t theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    if (static_cast<int32_t>(theirs - last) > 0) last = theirs;
  }
  exchange.restart(last + 2);
  world.barrier("all have begun anew");
}

/// The program of one rank.
void exchange_on(World& world, const Drawn& drawn, std::optional<uint32_t> stopped) {
  LowLatency exchange(world, drawn.first.options());
  if (drawn.hasty) be_hasty(exchange, drawn);
  LowLatencyCase of = drawn.first;
  of.sms = drawn.sms[world.rank()];
  Survivor survivor(exchange, stopped);
  auto early_weights = drawn.early_weights.begin();
  const auto make = [&] {
    of.early_weights = *early_weights++;
    of.seed += 1;
    return std::make_unique<SurvivorBatch>(survivor, of, drawn.all_ones);
  };
  for (const Pattern pattern : drawn.pairs) {
    const auto one = make(), other = make();
    if (pattern == Pattern::overlapped) {
      overlap(*one, *other);
      continue;
    }
    const bool hooks = pattern == Pattern::hooks;
    for (SurvivorBatch* const batch : {one.get(), other.get()}) {
      batch->dispatch(hooks);
      if (hooks) batch->receive_dispatch();
      batch->combine(hooks);
      if (hooks) batch->receive_combine();
    }
  }
  survivor.require_only_the_stopped_masked();
  if (!stopped) exchange.close();
}

void run_suite(SeedRun& run) {
  Drawn drawn = draw(run);
  const bool stops = run.random.chance(224), may_stall = run.random.chance(128);
  if (!stops && run.random.chance(192))
    drawn.hasty =
        std::chrono::nanoseconds(run.option("hasty_ns", 1u << run.random.between(11, 19)));
  simulated::Options options{
      .ranks = drawn.first.shape.ranks,
      .host_of = drawn.host_of,
      .arena_bytes = size_t{8} << 20,
      .timeout = kTimeout,
      .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{20'000'000}) : 0,
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12))},
      .queues_per_peer = run.option("queues", run.random.between(1, 2)),
      .within_hosts = drawn.first.paths == LowLatencyPaths::put,
      .epoch_before = drawn.epoch_before};
  if (drawn.hasty) run.reach("messages that come too late");
  std::optional<uint32_t> stopped;
  if (stops) {
    const uint64_t after = run.random.below(1u << run.random.between(9, 16));
    stopped = run.option("stops", run.random.below(options.ranks));
    // The stores land: other fates also lose those that an applied signal has released.
    options.stop = simulation::RankStop{.rank = *stopped,
                                        .after_steps = run.option("after_steps", after),
                                        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result =
      simulated::run(run, options, [&](World& world) { exchange_on(world, drawn, stopped); });
  result.require_clean_after(options.stop);
}

constexpr const char* kOwnKernels =
    "is stored to this rank's own window, which kernels of this rank alone read";

const bool registered = simulation::add_suite(
    {.name = "low_latency_put",
     .what = "batches of few tokens between hosts, exact whatever the network does",
     .run = run_suite,
     .explained = {{simulation::Fault::sys_made_gpu, "messages_kernel.hpp:151", kOwnKernels},
                   {simulation::Fault::sys_made_gpu, "messages_kernel.hpp:357", kOwnKernels},
                   {simulation::Fault::sys_made_gpu, "messages_kernel.hpp:405", kOwnKernels},
                   {simulation::Fault::sys_made_gpu, "messages_kernel.hpp:420", kOwnKernels},
                   {simulation::Fault::sys_made_gpu, "messages_kernel.hpp:443", kOwnKernels}},
     .reaches = {{"epochs wrap", 150},
                 {"epochs pass a half", 80},
                 {"messages that come too late", 60}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::test
