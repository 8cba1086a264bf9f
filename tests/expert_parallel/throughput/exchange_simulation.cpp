// Suite `throughput`: dispatch and combine under adversarial delivery, schedules and memory; every
// result is compared bit for bit. Some runs contain a token that must be refused, some a rank that
// stops midway. Suite `throughput_wide`: the same on 48 and 72 ranks, more than a warp has lanes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>

#include "expert_parallel/drawn_epoch.hpp"
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
  twice,
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
                                      "other_rows",
                                      "twice"};
constexpr uint32_t kSteps = std::size(kStepNames);

/// How the calls of the ranks differ in the end.
enum class Discord : uint32_t { none, call, route, weights };
constexpr const char* kDiscordNames[] = {"none", "call", "route", "weights"};

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
  Discord discord = Discord::none;
  uint32_t other = 0;          ///< rank that differs, for Step::other_rows and for `discord`
  uint32_t scales_off_by = 0;  ///< words between aligned memory and scales, for Step::format
  uint32_t epoch_before = 0;
  std::optional<uint32_t> stops;  ///< rank that stops
  uint32_t stop_from = 0;         ///< step from which its steps count; 0: the first dispatch
};

RowFormat draw_format(Random& random) {
  constexpr DataType kTypes[] = {DataType::bfloat16, DataType::float16, DataType::float32,
                                 DataType::float8_e4m3fn, DataType::uint8};
  RowFormat format{.type = kTypes[random.below(std::size(kTypes))]};
  if (format.type == DataType::uint8) format.row_bytes = 16 * random.between(1, 20);
  format.scale_words = random.chance(256) ? 0 : random.between(1, 9);
  if (random.chance(384)) format.scale_words = 4 * random.between(1, 2);  // Whole pieces.
  format.scale_order = random.chance(512) ? ScaleOrder::rows : ScaleOrder::columns;
  return format;
}

/// Leaves a rank without tokens and rows, between one that wants weights back and one that does
/// not.
void leave_idle(Random& random, Drawn& drawn) {
  const uint32_t ranks = drawn.exchange.shape.ranks, idle = random.between(1, ranks - 1);
  drawn.exchange.picking.one_expert = true;  // On rank 0.
  drawn.exchange.tokens[idle] = 0;
  for (uint32_t& tokens : drawn.exchange.tokens)
    if (&tokens != &drawn.exchange.tokens[idle]) tokens = std::max(tokens, 1u);
  if (drawn.other == idle) drawn.other = 0;
}

/// Reports the steps, and options that only some of them use, if there is such a step.
void note_used(SeedRun& run, const Drawn& drawn) {
  run.option("tokens", fmt::format("{}", drawn.exchange.tokens));
  run.option("in_place", fmt::format("{}", drawn.in_place));
  run.option("one_expert", drawn.exchange.picking.one_expert);
  for (const Step step : drawn.steps) run.option("step", kStepNames[static_cast<uint32_t>(step)]);
  const auto has = [&](Step step) {
    return std::find(drawn.steps.begin(), drawn.steps.end(), step) != drawn.steps.end();
  };
  if (has(Step::format)) {
    run.option("format", name_of(drawn.format.type));
    run.option("scale_words", drawn.format.scale_words);
    run.option("scales_by_columns", drawn.format.scale_order == ScaleOrder::columns);
    if (drawn.format.scale_words > 0) run.option("scales_off_by", drawn.scales_off_by);
    if (drawn.format.scale_order == ScaleOrder::rows && drawn.format.scale_words % 4 == 0 &&
        drawn.format.scale_words > 0)
      run.reach(drawn.scales_off_by == 0 ? "aligned scales in whole pieces"
                                         : "unaligned scales in whole pieces");
  }
  const bool at_once = has(Step::by_expert_at_once);
  const bool refused = has(Step::by_expert_refused);
  if (has(Step::places) || at_once || refused) run.option("spare", drawn.spare);
  if (has(Step::by_expert) || at_once || refused) run.option("alignment", drawn.alignment);
  if (at_once || has(Step::other_rows)) run.option("waits", drawn.waits);
  if (has(Step::other_rows) || drawn.discord != Discord::none) run.option("other", drawn.other);
}

/// Draws mostly few experts, sometimes more than a warp has lanes; in half of the runs the ranks do
/// not divide them. With many experts a token may choose more than a warp has lanes.
void draw_experts(SeedRun& run, Shape& shape) {
  Random& random = run.random;
  const bool many = shape.ranks <= 8 && random.chance(64);
  uint32_t experts = shape.ranks * (many ? random.between(33, 40) : random.between(1, 3));
  if (random.chance(512)) experts -= random.below(shape.ranks);
  shape.experts = run.option("experts", experts);
  const bool many_choices = many && random.chance(384) && experts > 33;
  // A lane holds eight choices at a time.
  const bool some_choices = experts > 8 && random.chance(many ? 512 : 256);
  const uint32_t topk = many_choices   ? random.between(33, std::min(experts, 70u))
                        : some_choices ? random.between(9, std::min(experts, 20u))
                                       : random.between(1, std::min(experts, 4u));
  shape.topk = run.option("topk", topk);
}

/// Draws a map whose places are the experts of `of`'s shape so far.
void draw_places(SeedRun& run, ExchangeCase& of) {
  Random& random = run.random;
  const uint32_t places = of.shape.experts;
  const uint32_t experts = random.between(of.shape.topk, places);
  of.map = draw_map(places, experts, [&](uint32_t end) { return random.below(end); });
  run.option("map", fmt::format("{} of {}", of.map.expert_at, experts));
}

/// Empties some slots in a share of the runs: one or several, often the first or the last, or all
/// but one.
void draw_absent(SeedRun& run, Drawn& drawn) {
  Random& random = run.random;
  ExchangeCase& exchange = drawn.exchange;
  const uint32_t ranks = exchange.shape.ranks;
  if (ranks == 1 || !random.chance(224)) return;
  const uint32_t stays = random.below(ranks);
  const bool all_others = random.chance(128);
  const uint32_t first = random.below(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (rank != stays && (all_others || rank == first || random.chance(128))) {
      exchange.absent.push_back(rank);
      exchange.tokens[rank] = 0;
    }
  if (exchange.is_absent(drawn.other)) drawn.other = stays;
}

/// Reports the empty slots, once it is known which there are.
void note_absent(SeedRun& run, const ExchangeCase& exchange) {
  const std::vector<uint32_t>& absent = exchange.absent;
  if (absent.empty()) return;
  run.option("absent", fmt::format("{}", absent));
  const uint32_t last = exchange.shape.ranks - 1;
  if (absent.front() == 0) run.reach("the first rank is absent");
  if (absent.back() == last) run.reach("the last rank is absent");
  if (std::any_of(absent.begin(), absent.end(),
                  [&](uint32_t rank) { return rank > 0 && rank < last; }))
    run.reach("a rank between others is absent");
  if (exchange.present().size() == 1) run.reach("all ranks but one are absent");
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
  run.option("sms", fmt::format("{}", drawn.sms));
  drawn.exchange.picking.none = run.option("none", random.below(4) * 0.25);
  drawn.exchange.picking.one_expert = random.chance(64);
  drawn.exchange.idx_is_int64 = run.option("idx_is_int64", random.chance(512));
  drawn.exchange.seed = static_cast<uint32_t>(random.next());
  // Often: in no other run does a call fail while some of its blocks have hardly begun.
  if (shape.ranks > 1 && random.chance(512))
    drawn.discord = static_cast<Discord>(random.between(1, 3));
  run.option("discord", kDiscordNames[static_cast<uint32_t>(drawn.discord)]);
  if (drawn.discord != Discord::weights && random.chance(320)) draw_places(run, drawn.exchange);
  const bool many_calls = ranks <= 8 && random.chance(128);
  const uint32_t steps = ranks > 8 ? 1 : many_calls ? random.between(3, 6) : random.between(1, 2);
  for (uint32_t i = 0; i < steps; ++i) {
    // There are many formats, so their step is drawn three times as often as any other.
    const uint32_t number = random.below(kSteps + 2);
    auto step = number < kSteps ? static_cast<Step>(number) : Step::format;
    // Of few kinds, so that words of one parity are used again and again.
    if (many_calls) step = static_cast<Step>(random.below(static_cast<uint32_t>(Step::refused)));
    drawn.steps.push_back(step);
  }
  if (shape.topk > 8 && random.chance(640)) drawn.steps.front() = Step::twice;
  drawn.spare = random.between(1, 9);
  drawn.alignment = 1u << random.below(5);
  drawn.waits = random.chance(512);
  drawn.other = random.below(ranks);
  drawn.scales_off_by = random.below(4);
  drawn.epoch_before = draw_epoch_before(run);
  drawn.tuning.movers = run.option("movers", random.between(1, 3));
  drawn.tuning.kept_percent = run.option("kept_percent", random.between(1, 100));
  drawn.tuning.stages = run.option("stages", random.between(1, 4));
  if (drawn.discord == Discord::weights && ranks > 2 && random.chance(512))
    leave_idle(random, drawn);
  else if (!drawn.exchange.map.given())
    draw_absent(run, drawn);
  note_absent(run, drawn.exchange);
  return drawn;
}

void require_none(const std::string& difference, const char* after) {
  if (!difference.empty())
    throw simulation::SuiteFailure(fmt::format("after {}: {}", after, difference));
}

/// The tokens of all ranks for one call, as they count, and what this rank must receive of them.
struct CallTokens {
  /// `placed`: by place; `named`: the ids that this rank gives.
  CallTokens(const World& world, const ExchangeCase& exchange_case, std::vector<Tokens> placed,
             std::vector<int64_t> named)
      : all(exchange_case.counted(std::move(placed))),
        mine(all[world.rank()]),
        lost(static_cast<size_t>(std::ranges::count(mine.ids, -1) - std::ranges::count(named, -1))),
        expected(expected_on(exchange_case.shape, all, world.rank())),
        device(accelerator_of(world), with_ids(mine, std::move(named)),
               exchange_case.idx_is_int64) {}
  CallTokens(const CallTokens&) = delete;

  DispatchInput input() const { return device.input(); }

  const std::vector<Tokens> all;
  const Tokens& mine;
  const size_t lost;  ///< choices of this rank's tokens that count as none
  const Expected expected;
  const TokensOnDevice device;

 private:
  static Tokens with_ids(Tokens tokens, std::vector<int64_t> ids) {
    tokens.ids = std::move(ids);
    return tokens;
  }
};

/// The program of one rank. Every call that counts has other tokens, and every combine other
/// results, so that nothing left over from an earlier call is right by chance.
class Program {
 public:
  Program(World& world, const Drawn& drawn, SeedRun& run, bool& stop_counts)
      : world_(world),
        drawn_(drawn),
        run_(run),
        stop_counts_(stop_counts),
        case_(drawn.exchange),
        exchange_(world, options(world, drawn)),
        first_(fresh()),
        load_(exchange_.local_experts()) {
    if (!case_.absent.empty() && first_->lost > 0) run.reach("a choice of an absent rank's expert");
  }

  void run() {
    if (case_.map.given()) exchange_.set_expert_map(case_.map.expert_at);
    if (drawn_.stop_from == 0 && is_stopped()) stop_counts_ = true;
    received_ = exchange_.dispatch(first_->input());
    count(*first_);
    for (const Step step : drawn_.steps) {
      if (++steps_ == drawn_.stop_from && is_stopped()) stop_counts_ = true;
      take(step);
    }
    require_none(difference(exchange_, received_, first_->expected), "the first dispatch");
    exchange_.wait();
    require_load();
    if (drawn_.discord != Discord::none) expect_discord();
  }

 private:
  using Fresh = std::unique_ptr<CallTokens>;

  static ExpertParallelOptions options(const World& world, const Drawn& drawn) {
    ExpertParallelOptions options = drawn.exchange.options();
    options.sms = drawn.sms[world.rank()];
    options.tuning = drawn.tuning;
    return options;
  }
  bool is_stopped() const { return world_.rank() == drawn_.stops; }
  const Shape& shape() const { return case_.shape; }

  Fresh fresh() {
    ++case_.seed;
    return std::make_unique<CallTokens>(world_, case_, case_.draw(),
                                        case_.named()[world_.rank()].ids);
  }
  /// Returns the first call's tokens with other rows.
  Fresh first_with_fresh_rows() {
    ++case_.seed;
    std::vector<Tokens> all = first_->all;
    const std::vector<Tokens> others = case_.draw();
    for (size_t rank = 0; rank < all.size(); ++rank) all[rank].x = others[rank].x;
    return std::make_unique<CallTokens>(world_, case_, std::move(all), first_->mine.ids);
  }
  /// Counts a dispatch.
  void count(const CallTokens& tokens, uint32_t times = 1) {
    for (size_t expert = 0; expert < load_.size(); ++expert)
      load_[expert] += uint64_t{times} * tokens.expected.tokens_per_expert[expert];
  }

  void combine(bool with_weights) {
    const bool in_place = drawn_.in_place[world_.rank()];
    require_none(difference_after_combine(
                     exchange_, received_, shape(), first_->mine, first_->expected,
                     {.in_place = in_place, .with_weights = with_weights, .call = ++case_.seed}),
                 "combine");
  }

  void take(Step step) {
    switch (step) {
      case Step::dispatch: {
        const Fresh again = fresh();
        count(*again);
        const Received received = exchange_.dispatch(again->input());
        require_none(difference(exchange_, received, again->expected), "a second dispatch");
        break;
      }
      case Step::dispatch_again: {
        const Fresh again = first_with_fresh_rows();
        const Received received = exchange_.dispatch({.x = again->input().x}, *received_.route);
        require_none(difference(exchange_, received, again->expected), "dispatch on a known route");
        break;
      }
      case Step::combine:
        combine(false);
        break;
      case Step::combine_with_weights:
        combine(true);
        break;
      case Step::refused:
        expect_refusal();
        break;
      case Step::twice:
        expect_refusal_of_duplicate();
        break;
      case Step::other_rows:
        require_none(
            difference_after_other_rows(exchange_, fresh()->device, drawn_.other, drawn_.waits),
            "rows of two types");
        break;
      case Step::format: {
        const Fresh tokens = fresh();
        count(*tokens);
        require_none(difference_in_format(exchange_, tokens->device, tokens->expected,
                                          drawn_.format, drawn_.scales_off_by),
                     "a format");
        break;
      }
      case Step::places: {
        const Fresh tokens = fresh();
        count(*tokens);
        require_none(difference_with_places(exchange_, tokens->device, shape(), tokens->mine,
                                            tokens->expected, drawn_.spare),
                     "a dispatch that nobody waits for");
        break;
      }
      case Step::by_expert:
        require_none(
            difference_by_expert(exchange_, received_, shape(), first_->mine, drawn_.alignment),
            "rows by expert");
        break;
      case Step::by_expert_at_once: {
        const Fresh before = fresh();
        count(*before, 2);
        count(*first_);
        require_none(difference_by_expert_at_once(exchange_, first_->device, received_,
                                                  before->device, before->expected,
                                                  drawn_.alignment, drawn_.spare, drawn_.waits),
                     "rows by expert at once");
        break;
      }
      case Step::by_expert_refused:
        count(*first_);
        require_none(difference_after_refusal_by_expert(exchange_, first_->device, received_,
                                                        drawn_.alignment, drawn_.spare),
                     "too few places for rows by expert");
        break;
      case Step::watched: {
        const Fresh tokens = fresh();
        count(*tokens);
        require_none(difference_if_watched(exchange_, tokens->device, tokens->expected),
                     "a watched dispatch");
        break;
      }
    }
  }

  /// Dispatches these experts: all ranks must refuse them, name `rank`, and go on as before.
  void require_refused(const std::vector<Tokens>& all, uint32_t rank, const std::string& seen) {
    const CallTokens tokens(world_, case_, all, all[world_.rank()].ids);
    try {
      exchange_.dispatch(tokens.input());
    } catch (const InvalidArgument& error) {
      if (error.rank == rank && error.argument == "topk_idx" && error.seen == seen) return;
      throw;
    }
    throw simulation::SuiteFailure(fmt::format("{} was accepted", seen));
  }
  /// Dispatches a token with an expert that does not exist.
  void expect_refusal() {
    ++case_.seed;
    std::vector<Tokens> all = case_.named();
    uint32_t culprit = 0;
    while (culprit < world_.size() && all[culprit].count == 0) ++culprit;
    if (culprit == world_.size()) return;  // No rank has a token to refuse.
    const uint32_t expert = exchange_.options().experts + 3;
    all[culprit].ids.back() = expert;
    require_refused(all, culprit,
                    fmt::format("expert {} in token {}", expert, all[culprit].count - 1));
  }
  /// Dispatches a token that chooses an expert twice: refused, unless the expert has no place.
  void expect_refusal_of_duplicate() {
    ++case_.seed;
    std::vector<Tokens> all = case_.named();
    const uint32_t topk = shape().topk;
    // Of this call alone, and the same on all ranks.
    Random random(case_.seed);
    const uint32_t culprit = random.below(world_.size());
    Tokens& tokens = all[culprit];
    if (topk < 2 || tokens.count == 0) return;
    const uint32_t token = random.below(tokens.count), later = random.between(1, topk - 1),
                   earlier = random.below(later);
    const int64_t expert = random.below(case_.map.named(shape()).experts);
    if (case_.map.given() && case_.map.place(shape(), expert, 0, 0) == kLostChoice) return;
    int64_t* const ids = tokens.ids.data() + size_t{token} * topk;
    std::replace(ids, ids + topk, expert, int64_t{-1});
    ids[earlier] = ids[later] = expert;
    // Kernels hold eight choices at a time.
    if (later >= 8)
      run_.reach(earlier / 8 == later / 8 ? "a duplicate among later choices"
                                          : "a duplicate of an earlier choice");
    const bool lost = std::ranges::any_of(
        case_.absent, [&](uint32_t rank) { return shape().holds(rank, expert); });
    if (lost) {
      // Both choices count as none.
      const CallTokens accepted(world_, case_, all, all[world_.rank()].ids);
      count(accepted);
      require_none(difference(exchange_, exchange_.dispatch(accepted.input()), accepted.expected),
                   "an absent rank's expert twice in a token");
      return;
    }
    require_refused(all, culprit, fmt::format("expert {} twice in token {}", expert, token));
  }

  /// Checks the tokens counted on the device, and that some time was spent waiting, since no two
  /// ranks start a call at the very same moment.
  void require_load() const {
    const ExpertParallel::Load load = exchange_.load();
    for (size_t expert = 0; expert < load_.size(); ++expert)
      if (load.tokens_per_expert[expert] != load_[expert])
        throw simulation::SuiteFailure(
            fmt::format("{} tokens were counted for local expert {}, which {} chose",
                        load.tokens_per_expert[expert], expert, load_[expert]));
    const double waited = std::accumulate(load.waited_us.begin(), load.waited_us.end(), 0.0);
    if (case_.present().size() > 1 && waited == 0)
      throw simulation::SuiteFailure("no wait for another rank was counted");
  }

  /// Returns whether a rank has neither rows nor tokens, so that it cannot know of weights.
  bool has_nothing(uint32_t rank) const {
    return first_->all[rank].count == 0 && expected_on(shape(), first_->all, rank).rows.empty();
  }
  /// Returns the rank that all must name: the first that differs from the first that counts. None
  /// if none differs.
  std::optional<uint32_t> discordant() const {
    std::optional<bool> agreed;
    for (const uint32_t rank : case_.present()) {
      if (drawn_.discord == Discord::weights && has_nothing(rank)) continue;
      const bool differs = rank == drawn_.other;
      if (agreed && differs != *agreed) return rank;
      agreed = differs;
    }
    return std::nullopt;
  }
  /// One rank makes another call than the others. All must name the same rank, and none may hang.
  void expect_discord() {
    const bool differs = world_.rank() == drawn_.other;
    const std::optional<uint32_t> named = discordant();
    const Discord discord = drawn_.discord;
    for (const uint32_t rank : case_.present())
      if (discord == Discord::weights && named && has_nothing(rank))
        run_.reach("a rank without weights amid discord about them");
    const DeviceArray<uint16_t> out(accelerator_of(world_), first_->mine.x.size());
    const DeviceArray<float> out_weights(accelerator_of(world_), first_->mine.weights.size());
    const auto combine = [&](const Received& received, bool with_weights) {
      CombineInput input{.y = received.x};
      CombineOutput output{.x = out.bf16_rows(shape().hidden)};
      if (with_weights) {
        input.topk_weights = received_.topk_weights;
        output.topk_weights = out_weights.view({first_->mine.count, shape().topk});
      }
      exchange_.combine(input, *received.route, output);
    };
    Received second;
    if (discord == Discord::route) second = exchange_.dispatch(first_->input());
    try {
      if (discord == Discord::call && differs)
        exchange_.dispatch({.x = first_->input().x}, *received_.route);
      else
        combine(discord == Discord::route && differs ? second : received_,
                discord == Discord::weights && differs);
      exchange_.wait();
    } catch (const InvalidArgument& error) {
      const char* const argument = discord == Discord::route ? "route" : "call";
      if (error.argument == argument && error.rank == named) return;
      throw;
    }
    if (named) throw simulation::SuiteFailure("ranks made different calls and did not hear of it");
  }

  World& world_;
  const Drawn& drawn_;
  SeedRun& run_;
  bool& stop_counts_;  ///< see simulation::RankStop::from
  ExchangeCase case_;  ///< its seed is the number of the last tokens or results drawn
  ExpertParallel exchange_;
  const Fresh first_;
  Received received_;  ///< of the first dispatch
  std::vector<uint64_t> load_;
  uint32_t steps_ = 0;  ///< begun, besides the first dispatch
};

constexpr size_t kArenaBytes = size_t{4} << 20;

/// The waits of a call that others' deaths should end, as the survivors' errors name them.
void note_deaths(SeedRun& run, const simulated::Result& result) {
  for (const std::exception_ptr& thrown : result.thrown) {
    if (!thrown) continue;
    try {
      std::rethrow_exception(thrown);
    } catch (const PeerTimeout& error) {
      run.reach("a death noticed in " + error.facts.phase);
    } catch (const PeerLost& error) {
      run.reach("a death noticed in " + error.facts.phase);
    } catch (...) {
      // No effect of a death: see require_clean_after.
    }
  }
}

void run_wide(SeedRun& run) {
  const Drawn drawn = draw(run, run.random.chance(512) ? 48 : 72);
  const simulated::Options options{.ranks = drawn.exchange.shape.ranks,
                                   .arena_bytes = size_t{1} << 20,
                                   .epoch_before = drawn.epoch_before,
                                   .absent = drawn.exchange.absent};
  note_used(run, drawn);
  bool stop_counts = false;
  const simulated::Result result = simulated::run(
      run, options, [&](World& world) { Program(world, drawn, run, stop_counts).run(); });
  result.require_clean({});
}

void run_suite(SeedRun& run) {
  Drawn drawn = draw(run, run.random.between(1, 5));
  simulated::Options options{.ranks = drawn.exchange.shape.ranks,
                             .arena_bytes = kArenaBytes,
                             .epoch_before = drawn.epoch_before,
                             .absent = drawn.exchange.absent};
  const std::vector<uint32_t> present = drawn.exchange.present();
  const bool stops = present.size() > 1 && run.random.chance(256);
  bool stop_counts = false;
  if (stops) {
    constexpr const char* kFates[] = {"land", "vanish", "tear"};
    const uint32_t fate = run.random.below(std::size(kFates));
    run.option("fate", kFates[fate]);
    const auto of_present = run.random.below(static_cast<uint32_t>(present.size()));
    drawn.stops = run.option("stops", present[of_present]);
    // Most of them in a combine whose rows the others await one by one: in few runs would a rank
    // die there by chance.
    drawn.stop_from = run.random.below(1 + static_cast<uint32_t>(drawn.steps.size()));
    const bool in_combine = run.random.chance(640);
    if (in_combine) {
      drawn.stop_from = std::max(drawn.stop_from, 1u);
      drawn.steps[drawn.stop_from - 1] =
          run.random.chance(512) ? Step::combine : Step::combine_with_weights;
      drawn.in_place[*drawn.stops] = run.random.chance(128);
    }
    run.option("stop_from", drawn.stop_from);
    // Over orders of magnitude, since the number of steps of a call is unknown.
    const uint32_t most = in_combine ? run.random.between(10, 15) : run.random.between(7, 14);
    const uint64_t after = run.random.below(1u << most);
    options.stop = simulation::RankStop{.rank = *drawn.stops,
                                        .after_steps = run.option("after_steps", after),
                                        .from = &stop_counts,
                                        .fate = static_cast<simulation::InFlight>(fate)};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  note_used(run, drawn);
  const simulated::Result result = simulated::run(
      run, options, [&](World& world) { Program(world, drawn, run, stop_counts).run(); });
  note_deaths(run, result);
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

/// Seeds of which one reaches a state that lasts for a few steps.
constexpr uint32_t kRarely = 50'000;

const bool registered = simulation::add_suite(
    {.name = "throughput",
     .what = "dispatch and combine of every shape, exact under adversarial delivery",
     .run = run_suite,
     .explained = {{Fault::release_made_relaxed, "call_kernel.hpp:92", kNoLoadBuffering},
                   {Fault::acquire_made_relaxed, "call_kernel.hpp:92", kNoLoadBuffering},
                   {Fault::release_made_relaxed, "memory.hpp", kReadByHostCode},
                   {Fault::sys_made_gpu, "memory.hpp", kOwnHost},
                   {Fault::sys_made_gpu, "wait.hpp:102", kOwnHost},
                   {Fault::sys_made_gpu, "call_kernel.hpp:106", kOwnHost},
                   {Fault::sys_made_gpu, "report_kernel.hpp:34", kOwnHost},
                   {Fault::proxy_fence_removed, "combine_kernel.hpp:23", kFencedAgain},
                   {Fault::proxy_fence_removed, "fetch_rows_kernel.hpp:235", kKernelEnded},
                   {Fault::proxy_fence_removed, "prepare_rows_kernel.hpp:121", kKernelEnded},
                   {Fault::proxy_fence_removed, "begin_dispatch_kernel.hpp:52", kKernelEnded},
                   {Fault::proxy_fence_removed, "dispatch_by_expert_kernel.hpp:27",
                    kFencedByMovers},
                   {Fault::proxy_fence_removed, "arrived_rows_kernel.hpp:91", kSenderAwaitedCopies},
                   {Fault::barrier_removed, "begin_dispatch_kernel.hpp:49", kFencedLater},
                   {Fault::release_made_relaxed, "readiness_kernel.hpp", kNobodyWatches},
                   {Fault::acquire_made_relaxed, "readiness_kernel.hpp", kNobodyWatches},
                   {Fault::store_dropped, "readiness_kernel.hpp:85", kNobodyWatches}},
     .reaches = {{"epochs wrap", 150},
                 {"epochs pass a half", 80},
                 {"a duplicate of an earlier choice", 1000},
                 {"a duplicate among later choices", 1500},
                 {"aligned scales in whole pieces", 1000},
                 {"unaligned scales in whole pieces", 500},
                 {"a rank without weights amid discord about them", 500},
                 {"the first rank is absent", 100},
                 {"the last rank is absent", 100},
                 {"a rank between others is absent", 100},
                 {"all ranks but one are absent", 100},
                 {"a choice of an absent rank's expert", 100},
                 {"a death noticed in dispatch: ready word", 600},
                 {"a death noticed in dispatch: counts", 600},
                 {"a death noticed in dispatch: load", 500},
                 {"a death noticed in dispatch: arrivals", 500},
                 {"a death noticed in combine: ready word", 500},
                 {"a death noticed in combine: pulls", 1000},
                 {"a death noticed in combine: results", 3000},
                 {"a death noticed in dispatch: experts", kRarely},
                 {"a death noticed in dispatch: refusal", kRarely},
                 {"a death noticed in dispatch: routes", kRarely},
                 {"a death noticed in dispatch: metadata", kRarely},
                 {"a death noticed in dispatch: places", kRarely},
                 {"a death noticed in combine: stage", kRarely},
                 {"a death noticed in combine: load", kRarely}},
     .seeds = 2000});

const bool registered_wide =
    simulation::add_suite({.name = "throughput_wide",
                           .what = "the same on 48 and 72 ranks, with few tokens",
                           .run = run_wide,
                           .explained = {},
                           .reaches = {{"epochs wrap", kRarely},
                                       {"epochs pass a half", kRarely},
                                       {"a duplicate of an earlier choice", kRarely},
                                       {"a duplicate among later choices", kRarely},
                                       {"aligned scales in whole pieces", kRarely},
                                       {"unaligned scales in whole pieces", kRarely},
                                       {"a rank without weights amid discord about them", kRarely},
                                       {"the first rank is absent", kRarely},
                                       {"the last rank is absent", kRarely},
                                       {"a rank between others is absent", kRarely},
                                       {"all ranks but one are absent", kRarely},
                                       {"a choice of an absent rank's expert", kRarely}},
                           .seeds = 4});

}  // namespace
}  // namespace tokenyard::test
