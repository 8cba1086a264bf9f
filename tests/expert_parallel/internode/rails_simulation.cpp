// Suite `internode`: dispatch and combine between hosts of one to three ranks over the simulated
// network, which lands bytes as late, and in as wrong an order, as a network may. Rings hold few
// slots. Every result is compared bit for bit. Some runs contain a token that must be refused, some
// a rank that stops midway.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>

#include "expert_parallel/drawn_epoch.hpp"
#include "expert_parallel/internode/ordered_sums.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "expert_parallel/throughput/watched.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::Fault;
using simulation::Random;
using simulation::SeedRun;

enum class Step : uint32_t {
  dispatch,
  again,
  combine,
  combine_with_weights,
  refused,
  format,
  other_rows,
  watched,
  places,
  by_expert,
  in_order,
};
constexpr const char* kStepNames[] = {"dispatch", "again",     "combine",    "combine_with_weights",
                                      "refused",  "format",    "other_rows", "watched",
                                      "places",   "by_expert", "in_order"};

struct Drawn {
  ExchangeCase exchange;
  std::vector<uint32_t> host_of;  ///< [ranks]
  std::vector<uint32_t> sms;      ///< [ranks]
  std::vector<Step> steps;
  RowFormat format;
  ExpertParallelOptions::Tuning tuning;
  bool fp32_partials = false;
  std::vector<uint32_t> spare;  ///< [ranks] places beyond the rows
  uint32_t epoch_before = 0;
  std::optional<uint32_t> stops;
};

RowFormat draw_format(Random& random) {
  constexpr DataType kTypes[] = {DataType::bfloat16, DataType::float32, DataType::float8_e4m3fn};
  RowFormat format{.type = kTypes[random.below(std::size(kTypes))]};
  format.scale_words = random.below(4);
  format.scale_order = random.chance(512) ? ScaleOrder::rows : ScaleOrder::columns;
  return format;
}

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  const uint32_t hosts = random.between(2, random.chance(256) ? 4 : 2);
  for (uint32_t host = 0; host < hosts; ++host)
    for (uint32_t left = random.between(1, hosts > 2 ? 2 : 3); left > 0; --left)
      drawn.host_of.push_back(host);
  run.option("host_of", fmt::format("{}", drawn.host_of));
  Shape& shape = drawn.exchange.shape;
  shape.ranks = static_cast<uint32_t>(drawn.host_of.size());
  shape.experts = run.option("experts", shape.ranks * random.between(1, 2) - random.below(2));
  shape.topk = run.option("topk", random.between(1, std::min(shape.experts, 4u)));
  drawn.format = draw_format(random);
  shape.hidden = run.option("hidden", 16 * random.between(1, 2));
  const uint32_t most = random.chance(128) ? 12 : 4;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    drawn.exchange.tokens.push_back(random.chance(128) ? 0 : random.below(most + 1));
    drawn.sms.push_back(random.chance(640) ? 1 : 2);
    drawn.spare.push_back(random.chance(512) ? random.below(9) : 100);
  }
  run.option("tokens", fmt::format("{}", drawn.exchange.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  drawn.exchange.picking.none = run.option("none", random.below(3) * 0.25);
  drawn.exchange.picking.one_expert = run.option("one_expert", random.chance(64));
  drawn.exchange.seed = static_cast<uint32_t>(random.next());
  for (uint32_t steps = random.between(1, 3); steps > 0; --steps) {
    drawn.steps.push_back(static_cast<Step>(random.below(std::size(kStepNames))));
    run.option("step", kStepNames[static_cast<uint32_t>(drawn.steps.back())]);
  }
  // An odd number holds one slot each, an even one two.
  drawn.tuning.movers = run.option("movers", 2 + drawn.exchange.seed % 2);
  drawn.tuning.ring_rows = run.option("ring_rows", random.between(1, 9));
  drawn.tuning.chunk_rows = run.option("chunk_rows", random.below(6));
  drawn.fp32_partials = run.option("fp32_partials", random.chance(256));
  drawn.epoch_before = draw_epoch_before(run);
  return drawn;
}

void require_none(const std::string& difference, const char* after) {
  if (!difference.empty())
    throw simulation::SuiteFailure(fmt::format("after {}: {}", after, difference));
}

/// The program of one rank. Every call has other rows or results, so that nothing left over from an
/// earlier one is right by chance.
class Program {
 public:
  Program(World& world, const Drawn& drawn)
      : world_(world),
        drawn_(drawn),
        case_(drawn.exchange),
        exchange_(world, options(world, drawn)),
        all_(case_.draw()) {}

  void run() {
    const TokensOnDevice tokens = on_device(all_);
    received_ = exchange_.dispatch(tokens.input());
    const Expected first = expected(all_);
    for (const Step step : drawn_.steps) take(step, first);
    require_none(difference(exchange_, received_, first), "the first dispatch");
  }

 private:
  static ExpertParallelOptions options(const World& world, const Drawn& drawn) {
    ExpertParallelOptions options = drawn.exchange.options();
    options.sms = drawn.sms[world.rank()];
    options.tuning = drawn.tuning;
    options.fp32_partials = drawn.fp32_partials;
    return options;
  }
  TokensOnDevice on_device(const std::vector<Tokens>& all) const {
    return TokensOnDevice(accelerator_of(world_), all[world_.rank()], true);
  }
  Expected expected(const std::vector<Tokens>& all) const {
    return expected_on(case_.shape, all, world_.rank());
  }
  std::vector<Tokens> fresh() {
    ++case_.seed;
    return case_.draw();
  }

  void take(Step step, const Expected& first) {
    switch (step) {
      case Step::dispatch: {
        const std::vector<Tokens> all = fresh();
        const TokensOnDevice tokens = on_device(all);
        const Received received = exchange_.dispatch(tokens.input());
        return require_none(difference(exchange_, received, expected(all)), "a second dispatch");
      }
      case Step::again: {
        std::vector<Tokens> all = all_;
        const std::vector<Tokens> others = fresh();
        for (size_t rank = 0; rank < all.size(); ++rank) all[rank].x = others[rank].x;
        const TokensOnDevice tokens = on_device(all);
        const Received received = exchange_.dispatch({.x = tokens.input().x}, *received_.route);
        return require_none(difference(exchange_, received, expected(all)), "a known route");
      }
      case Step::combine:
      case Step::combine_with_weights:
        return require_none(
            difference_after_combine(exchange_, received_, case_.shape, all_[world_.rank()], first,
                                     {.in_place = world_.rank() % 2 == 0,
                                      .with_weights = step == Step::combine_with_weights,
                                      .call = ++case_.seed}),
            "combine");
      case Step::refused:
        return expect_refusal();
      case Step::other_rows:
        return expect_refusal_of_rows();
      case Step::format: {
        const std::vector<Tokens> all = fresh();
        const TokensOnDevice tokens = on_device(all);
        return require_none(difference_in_format(exchange_, tokens, expected(all), drawn_.format),
                            "a format");
      }
      case Step::watched: {
        const std::vector<Tokens> all = fresh();
        // A kernel that waits for rows of a rank that stops would name it in its own way.
        if (!drawn_.stops) return take_rows_as_they_come(all);
        return require_none(difference_if_watched(exchange_, on_device(all), expected(all)),
                            "a watched dispatch");
      }
      case Step::places: {
        const std::vector<Tokens> all = fresh();
        return require_none(
            difference_with_places(exchange_, on_device(all), case_.shape, all[world_.rank()],
                                   expected(all), drawn_.spare[world_.rank()]),
            "a dispatch that nobody waits for");
      }
      case Step::by_expert:
        return require_none(
            difference_by_expert(exchange_, received_, case_.shape, all_[world_.rank()], 4),
            "rows by expert");
      case Step::in_order: {
        const Tokens& mine = all_[world_.rank()];
        // A token's own order: ranks may be named twice, or not at all.
        Random random(++case_.seed + world_.rank());
        std::vector<uint32_t> order;
        for (uint32_t left = mine.count * world_.size(); left > 0; --left)
          order.push_back(random.below(world_.size() + 1));
        return require_none(
            difference_after_ordered_combine(exchange_, received_, case_.shape, drawn_.host_of,
                                             mine, first, order, random.below(3)),
            "a combine in the caller's order");
      }
    }
  }

  void take_rows_as_they_come(const std::vector<Tokens>& all) {
    const SideStream beside(accelerator_of(world_));
    const TokensOnDevice tokens = on_device(all);
    DispatchInput input = tokens.input();
    input.watcher = beside.stream();
    const Sums wanted = expected_sums_of(case_.shape, expected(all));
    std::optional<Received> received, again;
    const auto take = [&](const DispatchInput& of, const Route* route,
                          std::optional<Received>& there) {
      if (watched(exchange_, case_.shape, of, route, beside.stream(), there) != wanted)
        throw simulation::SuiteFailure("a kernel has read rows before they had come");
    };
    take(input, nullptr, received);
    take({.x = input.x, .watcher = input.watcher}, &*received->route, again);
    exchange_.wait();
  }

  void expect_refusal() {
    std::vector<Tokens> all = fresh();
    uint32_t culprit = 0;
    while (culprit < world_.size() && all[culprit].count == 0) ++culprit;
    if (culprit == world_.size()) return;
    all[culprit].ids.back() = case_.shape.experts + 3;
    const TokensOnDevice tokens = on_device(all);
    try {
      exchange_.dispatch(tokens.input());
    } catch (const InvalidArgument& error) {
      if (error.rank == culprit && error.argument == "topk_idx") return;
      throw;
    }
    throw simulation::SuiteFailure("an expert that does not exist was accepted");
  }

  /// The last rank with tokens sends other rows than the first one.
  void expect_refusal_of_rows() {
    const std::vector<Tokens> all = fresh();
    uint32_t first = 0, last = 0;
    for (uint32_t rank = world_.size(); rank-- > 0;)
      if (all[rank].count != 0) last = std::max(last, first = rank);
    if (last == first) return;
    const TokensOnDevice tokens = on_device(all);
    const Tokens& mine = all[world_.rank()];
    const DeviceArray<float> wide(accelerator_of(world_), mine.x.size());
    const DeviceArray<uint8_t> narrow(accelerator_of(world_), mine.x.size());
    DispatchInput input = tokens.input();
    if (world_.rank() == last)
      input.x = case_.seed % 2 == 0
                    ? wide.view(DataType::float32, {mine.count, case_.shape.hidden})
                    : narrow.view(DataType::float8_e4m3fn, {mine.count, case_.shape.hidden});
    try {
      exchange_.dispatch(input);
    } catch (const InvalidArgument& error) {
      if (error.argument == "x") return;
      throw;
    }
    throw simulation::SuiteFailure("rows of two formats were accepted");
  }

  World& world_;
  const Drawn& drawn_;
  ExchangeCase case_;
  ExpertParallel exchange_;
  const std::vector<Tokens> all_;
  Received received_;
};

/// Watches from outside: of ranks that wait in chains, each names the rank at the end.
class NamesChecker {
 public:
  explicit NamesChecker(const std::optional<uint32_t>& stopped) : stopped_(stopped) {}

  void check(const std::vector<std::exception_ptr>& thrown) const {
    for (uint32_t rank = 0; rank < thrown.size(); ++rank) {
      if (!thrown[rank] || rank == stopped_) continue;
      try {
        std::rethrow_exception(thrown[rank]);
      } catch (const PeerTimeout& error) {
        check(rank, error.facts);
      } catch (const PeerLost& error) {
        check(rank, error.facts);
      } catch (const std::exception&) {
        // Of no rank.
      }
    }
  }

 private:
  void check(uint32_t rank, const WaitFacts& facts) const {
    if (facts.rank == stopped_) return;
    throw simulation::SuiteFailure(fmt::format("rank {} names rank {} in {}, and rank {} stopped",
                                               rank, facts.rank, facts.phase,
                                               stopped_ ? fmt::format("{}", *stopped_) : "no"));
  }
  const std::optional<uint32_t> stopped_;
};

void run_suite(SeedRun& run) {
  Drawn drawn = draw(run);
  const bool may_stall = run.random.chance(256);
  simulated::Options options{
      .ranks = drawn.exchange.shape.ranks,
      .host_of = drawn.host_of,
      .arena_bytes = size_t{1} << 20,
      .card = {.nap_ns_max = run.option("nap", run.random.below(3) * 10'000),
               .stall_ns_max = may_stall ? run.option("stall", uint32_t{100'000'000}) : 0,
               .first = run.option("first", (run.random.below(2) << 16) - run.random.below(12))},
      .queues_per_peer = run.option("queues", run.random.between(2, 3)),
      .epoch_before = drawn.epoch_before};
  if (run.random.chance(192)) {
    drawn.stops = run.option("stops", run.random.below(options.ranks));
    // The stores land: other fates also lose those that an applied signal has released.
    options.stop = simulation::RankStop{
        .rank = *drawn.stops,
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(9, 15))),
        .fate = simulation::InFlight::land};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result = simulated::run(run, options, [&](World& world) {
    try {
      Program(world, drawn).run();
    } catch (const NetworkFault& error) {
      // A rank that misses another one takes its memory away, and cards refuse what is still put
      // there.
      if (!drawn.stops || error.facts.check != "target key" || error.facts.expected != 0) throw;
    }
  });
  result.require_clean_after(options.stop);
  NamesChecker(drawn.stops).check(result.thrown);
}

const bool registered = simulation::add_suite(
    {.name = "internode",
     .what = "dispatch and combine between hosts, exact whatever the network does",
     .run = run_suite,
     .reaches = {{"epochs wrap", 150}, {"epochs pass a half", 80}},
     .seeds = 300});

}  // namespace
}  // namespace tokenyard::test
