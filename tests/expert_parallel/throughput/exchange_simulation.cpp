// Suite `throughput`: dispatch and combine under adversarial delivery, schedules and memory; every
// result is compared bit for bit. Some runs contain a token that must be refused, some a rank that
// stops midway. Suite `throughput_wide`: the same on 48 and 72 ranks, more than a warp has lanes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "expert_parallel/throughput/row_bytes.hpp"
#include "expert_parallel/throughput/steps.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::test {
namespace {

using simulation::Fault;
using simulation::Random;
using simulation::SeedRun;

/// One call after the first dispatch.
enum class Step : uint32_t {
  dispatch,
  dispatch_again,
  combine,
  combine_with_weights,
  refused,
  format,
  places,
  by_expert,
  watched,
  by_expert_at_once,
  by_expert_refused,
  other_rows,
};
constexpr const char* kStepNames[] = {"dispatch",
                                      "dispatch_again",
                                      "combine",
                                      "combine_with_weights",
                                      "refused",
                                      "format",
                                      "places",
                                      "by_expert",
                                      "watched",
                                      "by_expert_at_once",
                                      "by_expert_refused",
                                      "other_rows"};
constexpr uint32_t kSteps = std::size(kStepNames);

struct Drawn {
  ExchangeCase exchange;
  std::vector<uint32_t> sms;  ///< [ranks]
  std::vector<Step> steps;
  RowFormat format;        ///< for Step::format
  uint32_t spare = 0;      ///< places beyond the rows, for Step::places
  uint32_t alignment = 1;  ///< for Step::by_expert
  bool waits = false;      ///< whether the host waits, for Step::by_expert_at_once
  ExpertParallelOptions::Tuning tuning;
  std::vector<bool> in_place;  ///< [ranks] whether results are where peers can read them
  bool ends_in_discord = false;
  uint32_t other = 0;  ///< rank that differs, for Step::other_rows
};

RowFormat draw_format(Random& random) {
  constexpr DataType kTypes[] = {DataType::bfloat16, DataType::float16, DataType::float32,
                                 DataType::float8_e4m3fn, DataType::uint8};
  RowFormat format{.type = kTypes[random.below(std::size(kTypes))]};
  if (format.type == DataType::uint8) format.row_bytes = 16 * random.between(1, 20);
  format.scale_words = random.chance(256) ? 0 : random.between(1, 9);
  format.scale_order = random.chance(512) ? ScaleOrder::rows : ScaleOrder::columns;
  return format;
}

/// Reports options that only some steps use, if there is such a step.
void note_used(SeedRun& run, const Drawn& drawn) {
  const auto has = [&](Step step) {
    return std::find(drawn.steps.begin(), drawn.steps.end(), step) != drawn.steps.end();
  };
  if (has(Step::format)) {
    run.option("format", name_of(drawn.format.type));
    run.option("scale_words", drawn.format.scale_words);
    run.option("scales_by_columns", drawn.format.scale_order == ScaleOrder::columns);
  }
  const bool at_once = has(Step::by_expert_at_once);
  const bool refused = has(Step::by_expert_refused);
  if (has(Step::places) || at_once || refused) run.option("spare", drawn.spare);
  if (has(Step::by_expert) || at_once || refused) run.option("alignment", drawn.alignment);
  if (at_once || has(Step::other_rows)) run.option("waits", drawn.waits);
  if (has(Step::other_rows)) run.option("other", drawn.other);
}

/// Draws mostly few experts, sometimes more than a warp has lanes; in half of the runs the ranks do
/// not divide them. With many experts a token may choose more than a warp has lanes.
void draw_experts(SeedRun& run, Shape& shape) {
  Random& random = run.random;
  const bool many = shape.ranks <= 8 && random.chance(64);
  uint32_t experts = shape.ranks * (many ? random.between(33, 40) : random.between(1, 3));
  if (random.chance(512)) experts -= random.below(shape.ranks);
  shape.experts = run.option("experts", experts);
  const bool many_choices = many && random.chance(512) && experts > 33;
  const uint32_t topk = many_choices ? random.between(33, std::min(experts, 70u))
                                     : random.between(1, std::min(experts, 4u));
  shape.topk = run.option("topk", topk);
}

/// Draws mostly few tokens, sometimes none; rows of one to a few pieces, sometimes of several
/// segments.
Drawn draw(SeedRun& run, uint32_t ranks) {
  Random& random = run.random;
  Drawn drawn;
  Shape& shape = drawn.exchange.shape;
  shape.ranks = run.option("ranks", ranks);
  draw_experts(run, shape);
  drawn.format = draw_format(random);
  // FP8 rows must fill pieces of 16 bytes.
  const uint32_t unit = drawn.format.type == DataType::float8_e4m3fn ? 16 : 8;
  shape.hidden = run.option(
      "hidden", shape.topk <= 32 && random.chance(64) ? 1200 : unit * random.between(1, 64 / unit));
  const uint32_t most = ranks > 8 ? 2 : shape.topk > 32 ? 4 : random.chance(128) ? 40 : 9;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    drawn.exchange.tokens.push_back(random.chance(128) ? 0 : random.below(most + 1));
    drawn.sms.push_back(ranks > 8 ? 1 : random.between(1, 3));
    drawn.in_place.push_back(random.chance(512));
  }
  run.option("tokens", fmt::format("{}", drawn.exchange.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  run.option("in_place", fmt::format("{}", drawn.in_place));
  drawn.exchange.picking.none = run.option("none", random.below(4) * 0.25);
  drawn.exchange.picking.one_expert = run.option("one_expert", random.chance(64));
  drawn.exchange.idx_is_int64 = run.option("idx_is_int64", random.chance(512));
  drawn.exchange.seed = static_cast<uint32_t>(random.next());
  // Often: in no other run does a call fail while some of its blocks have hardly begun.
  drawn.ends_in_discord = run.option("ends_in_discord", shape.ranks > 1 && random.chance(512));
  const uint32_t steps = ranks > 8 ? 1 : random.between(1, 2);
  for (uint32_t i = 0; i < steps; ++i) {
    // There are many formats, so their step is drawn three times as often as any other.
    const uint32_t number = random.below(kSteps + 2);
    const auto step = number < kSteps ? static_cast<Step>(number) : Step::format;
    run.option("step", kStepNames[static_cast<uint32_t>(step)]);
    drawn.steps.push_back(step);
  }
  drawn.spare = random.between(1, 9);
  drawn.alignment = 1u << random.below(5);
  drawn.waits = random.chance(512);
  drawn.other = random.below(ranks);
  note_used(run, drawn);
  drawn.tuning.movers = run.option("movers", random.between(1, 3));
  drawn.tuning.kept_percent = run.option("kept_percent", random.between(1, 100));
  drawn.tuning.stages = run.option("stages", random.between(1, 4));
  return drawn;
}

void require_none(const std::string& difference, const char* after) {
  if (!difference.empty())
    throw simulation::SuiteFailure(fmt::format("after {}: {}", after, difference));
}

/// Dispatches a token with an expert that does not exist: all ranks must refuse it, with no effect.
void expect_refusal(ExpertParallel& exchange, const ExchangeCase& exchange_case,
                    std::vector<Tokens> all) {
  World& world = exchange.world();
  uint32_t culprit = 0;
  while (culprit < world.size() && all[culprit].count == 0) ++culprit;
  if (culprit == world.size()) return;  // No rank has a token to refuse.
  all[culprit].ids.back() = exchange_case.shape.experts + 3;
  const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], exchange_case.idx_is_int64);
  try {
    exchange.dispatch(tokens.input());
  } catch (const InvalidArgument& error) {
    if (error.rank == culprit && error.argument == "topk_idx") return;
    throw;
  }
  throw simulation::SuiteFailure("an impossible expert was accepted");
}

/// The last rank dispatches while the others combine: all must raise an error, and none may hang.
void expect_discord(ExpertParallel& exchange, const Received& received, const Tokens& mine,
                    const TokensOnDevice& tokens) {
  World& world = exchange.world();
  const DeviceArray<uint16_t> out(accelerator_of(world), mine.x.size());
  try {
    if (world.rank() + 1 == world.size())
      exchange.dispatch({.x = tokens.input().x}, *received.route);
    else
      exchange.combine({.y = received.x}, *received.route,
                       {.x = out.bf16_rows(exchange.options().hidden)});
    exchange.wait();
  } catch (const InvalidArgument& error) {
    if (error.argument == "call") return;
    throw;
  }
  throw simulation::SuiteFailure("ranks made different calls and did not hear of it");
}

/// Checks the statistics counted on the device: `dispatches` of the same tokens, and some time
/// spent waiting, since no two ranks start a call at the very same moment.
void require_load(const ExpertParallel& exchange, const Expected& expected, uint32_t dispatches) {
  const ExpertParallel::Load load = exchange.load();
  for (size_t expert = 0; expert < load.tokens_per_expert.size(); ++expert)
    if (load.tokens_per_expert[expert] != uint64_t{dispatches} * expected.tokens_per_expert[expert])
      throw simulation::SuiteFailure(fmt::format(
          "{} tokens were counted for local expert {} in {} dispatches of {} each",
          load.tokens_per_expert[expert], expert, dispatches, expected.tokens_per_expert[expert]));
  const double waited = std::accumulate(load.waited_us.begin(), load.waited_us.end(), 0.0);
  if (exchange.world().size() > 1 && waited == 0)
    throw simulation::SuiteFailure("no wait for another rank was counted");
}

/// The program of one rank.
void exchange_on(World& world, const Drawn& drawn) {
  const ExchangeCase& exchange_case = drawn.exchange;
  const Shape& shape = exchange_case.shape;
  const std::vector<Tokens> all = exchange_case.draw();
  const Tokens& mine = all[world.rank()];
  const Expected expected = expected_on(shape, all, world.rank());
  ExpertParallelOptions options = exchange_case.options();
  options.sms = drawn.sms[world.rank()];
  options.tuning = drawn.tuning;
  ExpertParallel exchange(world, options);
  const TokensOnDevice tokens(accelerator_of(world), mine, exchange_case.idx_is_int64);

  const Received first = exchange.dispatch(tokens.input());
  const auto combine = [&](bool with_weights) {
    require_none(difference_after_combine(
                     exchange, first, shape, mine, expected,
                     {.in_place = drawn.in_place[world.rank()], .with_weights = with_weights}),
                 "combine");
  };
  uint32_t dispatches = 1;
  for (const Step step : drawn.steps) {
    switch (step) {
      case Step::dispatch: {
        ++dispatches;
        const Received again = exchange.dispatch(tokens.input());
        require_none(difference(exchange, again, expected), "a second dispatch");
        break;
      }
      case Step::dispatch_again: {
        const Received again = exchange.dispatch({.x = tokens.input().x}, *first.route);
        require_none(difference(exchange, again, expected), "dispatch on a known route");
        break;
      }
      case Step::combine:
        combine(false);
        break;
      case Step::combine_with_weights:
        combine(true);
        break;
      case Step::refused:
        expect_refusal(exchange, exchange_case, all);
        break;
      case Step::other_rows:
        require_none(difference_after_other_rows(exchange, tokens, drawn.other, drawn.waits),
                     "rows of two types");
        break;
      case Step::format:
        ++dispatches;
        require_none(difference_in_format(exchange, tokens, expected, drawn.format), "a format");
        break;
      case Step::places:
        ++dispatches;
        require_none(difference_with_places(exchange, tokens, shape, mine, expected, drawn.spare),
                     "a dispatch that nobody waits for");
        break;
      case Step::by_expert:
        require_none(difference_by_expert(exchange, first, shape, mine, drawn.alignment),
                     "rows by expert");
        break;
      case Step::by_expert_at_once:
        dispatches += 3;
        require_none(difference_by_expert_at_once(exchange, tokens, first, drawn.alignment,
                                                  drawn.spare, drawn.waits),
                     "rows by expert at once");
        break;
      case Step::by_expert_refused:
        ++dispatches;
        require_none(difference_after_refusal_by_expert(exchange, tokens, first, drawn.alignment,
                                                        drawn.spare),
                     "too few places for rows by expert");
        break;
      case Step::watched:
        ++dispatches;
        require_none(difference_if_watched(exchange, tokens, expected), "a watched dispatch");
        break;
    }
  }
  require_none(difference(exchange, first, expected), "the first dispatch");
  exchange.wait();
  require_load(exchange, expected, dispatches);
  if (drawn.ends_in_discord) expect_discord(exchange, first, mine, tokens);
}

constexpr size_t kArenaBytes = size_t{4} << 20;

void run_wide(SeedRun& run) {
  const Drawn drawn = draw(run, run.random.chance(512) ? 48 : 72);
  const simulated::Options options{.ranks = drawn.exchange.shape.ranks,
                                   .arena_bytes = size_t{1} << 20};
  const simulated::Result result =
      simulated::run(run, options, [&](World& world) { exchange_on(world, drawn); });
  result.require_clean({});
}

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run, run.random.between(1, 5));
  simulated::Options options{.ranks = drawn.exchange.shape.ranks, .arena_bytes = kArenaBytes};
  const bool stops = options.ranks > 1 && run.random.chance(256);
  if (stops) {
    constexpr const char* kFates[] = {"land", "vanish", "tear"};
    const uint32_t fate = run.random.below(std::size(kFates));
    run.option("fate", kFates[fate]);
    // Over orders of magnitude, since the number of steps of the run is unknown.
    const uint64_t after = run.random.below(1u << run.random.between(8, 16));
    options.stop =
        simulation::RankStop{.rank = run.option("stops", run.random.below(options.ranks)),
                             .after_steps = run.option("after_steps", after),
                             .fate = static_cast<simulation::InFlight>(fate)};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const simulated::Result result =
      simulated::run(run, options, [&](World& world) { exchange_on(world, drawn); });
  result.require_clean_after(options.stop);
}

/// Every block reads the epoch, and the last one to have done so advances it: without acq_rel an
/// early load could see the late store.
constexpr const char* kNoLoadBuffering =
    "shows only if loads are delayed beyond later stores (load buffering), which no machine does "
    "that runs threads in program order";
/// Deadline::fail publishes its report this way. (Places inside device/ are those of failing waits;
/// all others are named by the kernel's line.)
constexpr const char* kReadByHostCode =
    "orders plain memory that only host code reads, and host code is not instrumented";
/// The counts record, the abort flag, the report, and statistics.
constexpr const char* kOwnHost =
    "is between a rank's kernel and its own host code, which the model places on the rank's GPU";
/// Ready words announce work of earlier kernels.
constexpr const char* kKernelEnded =
    "orders accesses of kernels that have ended; the model treats the end of a kernel as a proxy "
    "fence, which PTX does not promise";
constexpr const char* kFencedLater =
    "only precedes a fence, which orders accesses of kernels that have ended (see there); the "
    "block "
    "synchronizes again before its rows move";
constexpr const char* kNobodyWatches =
    "orders rows for kernels that watch a running call: suite readiness has them, this one reads "
    "after the call has ended";
constexpr const char* kFencedAgain = "fetch_rows has a fence of its own before the first copy";
constexpr const char* kFencedByMovers =
    "movers fence again after they have the ready words, after the block has synchronized and "
    "before their first copy";
constexpr const char* kSenderAwaitedCopies =
    "concerns rows stored by bulk copies; their sender waited for those before it signalled, which "
    "the model treats as a proxy fence, and PTX does not promise that";

const bool registered = simulation::add_suite(
    {.name = "throughput",
     .what = "dispatch and combine of every shape, exact under adversarial delivery",
     .run = run_suite,
     .explained = {{Fault::release_made_relaxed, "call_kernel.hpp:92", kNoLoadBuffering},
                   {Fault::acquire_made_relaxed, "call_kernel.hpp:92", kNoLoadBuffering},
                   {Fault::release_made_relaxed, "memory.hpp", kReadByHostCode},
                   {Fault::sys_made_gpu, "memory.hpp", kOwnHost},
                   {Fault::sys_made_gpu, "wait.hpp:99", kOwnHost},
                   {Fault::sys_made_gpu, "call_kernel.hpp:106", kOwnHost},
                   {Fault::sys_made_gpu, "report_kernel.hpp:34", kOwnHost},
                   {Fault::proxy_fence_removed, "combine_kernel.hpp:23", kFencedAgain},
                   {Fault::proxy_fence_removed, "fetch_rows_kernel.hpp:235", kKernelEnded},
                   {Fault::proxy_fence_removed, "prepare_rows_kernel.hpp:121", kKernelEnded},
                   {Fault::proxy_fence_removed, "begin_dispatch_kernel.hpp:56", kKernelEnded},
                   {Fault::proxy_fence_removed, "dispatch_by_expert_kernel.hpp:27",
                    kFencedByMovers},
                   {Fault::proxy_fence_removed, "arrived_rows_kernel.hpp:91", kSenderAwaitedCopies},
                   {Fault::barrier_removed, "begin_dispatch_kernel.hpp:53", kFencedLater},
                   {Fault::release_made_relaxed, "readiness_kernel.hpp", kNobodyWatches},
                   {Fault::acquire_made_relaxed, "readiness_kernel.hpp", kNobodyWatches},
                   {Fault::store_dropped, "readiness_kernel.hpp:75", kNobodyWatches}},
     .seeds = 2000});

const bool registered_wide =
    simulation::add_suite({.name = "throughput_wide",
                           .what = "the same on 48 and 72 ranks, with few tokens",
                           .run = run_wide,
                           .explained = {},
                           .seeds = 4});

}  // namespace
}  // namespace tokenyard::test
