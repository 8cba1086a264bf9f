// Suite `low_latency_formats`: one rank differs from the others in `rows` or in `logfmt`, in one
// batch of several. No rank may accept data in another format: the others are exact without that
// rank, it is exact with its own experts alone, each names the ranks that it differs from, none
// waits for a deadline, and all are exact together once they have cleared their masks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "expert_parallel/drawn_epoch.hpp"
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
  uint32_t odd = 0;           ///< the rank that differs
  bool in_combine = false;    ///< differs in the combine; else in the rows of the dispatch
  LowLatencyRows odd_rows = LowLatencyRows::fp8;
  uint32_t before = 1, after = 1;  ///< whole batches before and after
  uint32_t epoch_before = 0;
};

Drawn draw(SeedRun& run) {
  Random& random = run.random;
  Drawn drawn;
  LowLatencyCase& of = drawn.of;
  of.shape.ranks = run.option("ranks", random.between(2, 4));
  of.shape.experts = run.option("experts", random.between(of.shape.ranks, 3 * of.shape.ranks));
  of.shape.topk = run.option("topk", random.between(1, std::min(of.shape.experts, 4u)));
  // Wide BF16 rows have more pieces than LogFMT rows, narrow ones fewer.
  of.shape.hidden = run.option("hidden", 32 * (random.chance(384) ? random.between(8, 40) : 1));
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank) {
    of.tokens.push_back(random.below(4));
    drawn.sms.push_back(random.between(2, 4));
  }
  run.option("tokens", fmt::format("{}", of.tokens));
  run.option("sms", fmt::format("{}", drawn.sms));
  const uint32_t rows = run.option("rows", random.below(4));
  const uint32_t odd_rows = run.option("odd_rows", (rows + random.between(1, 3)) % 4);
  of.rows = static_cast<LowLatencyRows>(rows);
  drawn.odd_rows = static_cast<LowLatencyRows>(odd_rows);
  of.hooks = run.option("hooks", random.chance(512));
  of.logfmt = run.option("logfmt", random.chance(512));
  of.early_weights = run.option("early_weights", random.below(1 << of.shape.ranks));
  of.seed = static_cast<uint32_t>(random.next());
  drawn.odd = run.option("odd", random.below(of.shape.ranks));
  drawn.in_combine = run.option("in_combine", random.chance(512));
  drawn.before = run.option("before", random.below(3));
  drawn.after = run.option("after", random.between(1, 3));
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
    for (uint32_t batch = 0; batch < drawn_.before; ++batch) whole_batch();
    odd_batch();
    world_.barrier("all have drained their streams");
    exchange_.clear_mask();
    world_.barrier("masks are cleared");
    for (uint32_t batch = 0; batch < drawn_.after; ++batch) whole_batch();
    if (!exchange_.failed_ranks().empty())
      throw WrongBatch("a rank was masked though none differed");
    exchange_.close();
  }

 private:
  uint32_t rank() const { return world_.rank(); }
  bool is_odd() const { return rank() == drawn_.odd; }
  void require_none(const std::string& difference) const {
    if (!difference.empty())
      throw WrongBatch(
          fmt::format("rank {} batch {}: {}", rank(), of_.seed - drawn_.of.seed, difference));
  }

  void whole_batch() {
    require_none(difference_after_batch(exchange_, of_, of_.draw()));
    ++of_.seed;
  }

  /// Returns the ranks that this rank differs from.
  std::set<uint32_t> others() const {
    std::set<uint32_t> ranks;
    for (uint32_t other = 0; other < of_.shape.ranks; ++other)
      if (other != rank() && (is_odd() || other == drawn_.odd)) ranks.insert(other);
    return ranks;
  }

  void odd_batch() {
    LowLatencyCase here = of_;
    if (is_odd() && drawn_.in_combine) here.logfmt = !here.logfmt;
    if (is_odd() && !drawn_.in_combine) here.rows = drawn_.odd_rows;
    const std::vector<Tokens> all = here.draw();
    const Tokens& mine = all[rank()];
    const LowLatencyTokens tokens(world_, here, mine);
    const LowLatencyCall call{.sms = here.sms, .hook = here.hooks};
    const std::set<uint32_t> without = others();
    const std::set<uint32_t> absent = drawn_.in_combine ? std::set<uint32_t>{} : without;
    const LowLatencyReceived received = exchange_.dispatch(tokens.input(), call);
    if (here.hooks) exchange_.receive(received.handle);
    collect_all();
    require_none(difference_after_dispatch(exchange_, here, all, received, absent));
    const TensorView y = exchange_.combine_buffer(received.handle);
    run_experts(exchange_, here, all, y, absent);
    const CombineOnDevice combined(exchange_, here, mine);
    exchange_.combine(combined.what(y, tokens), received.handle, call);
    if (here.hooks) collect([&] { exchange_.receive(received.handle); });
    collect_all();
    require_none(difference_after_combine(exchange_, here, mine, combined, without));
    // A combine learns nothing of ranks with which this rank exchanges no sums.
    std::set<uint32_t> noticed = without;
    if (drawn_.in_combine)
      std::erase_if(noticed, [&](uint32_t other) { return !has_choices_on(mine, other); });
    if (named_ != noticed)
      throw WrongBatch(fmt::format("rank {} names ranks {}, not {}", rank(), named_, noticed));
    for (const FailedRank& masked : exchange_.failed_ranks())
      if (masked.why != FailedRank::Why::differs)
        throw WrongBatch(fmt::format("rank {} masks: {}", rank(), masked.text));
    ++of_.seed;
  }

  bool has_choices_on(const Tokens& tokens, uint32_t other) const {
    return std::any_of(tokens.ids.begin(), tokens.ids.end(),
                       [&](int64_t id) { return of_.shape.holds(other, id); });
  }

  /// Makes a call; returns whether it has named a rank.
  bool collect(const std::function<void()>& call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      if (error.argument != (drawn_.in_combine ? "use_logfmt" : "rows") || !error.rank) throw;
      if (!named_.insert(*error.rank).second)
        throw WrongBatch(fmt::format("rank {} names rank {} twice", rank(), *error.rank));
      return true;
    }
    return false;
  }
  void collect_all() {
    while (collect([&] { exchange_.wait(); })) continue;
  }

  World& world_;
  const Drawn& drawn_;
  LowLatencyCase of_;
  LowLatency exchange_;
  std::set<uint32_t> named_;
};

constexpr size_t kArenaBytes = size_t{2} << 20;
/// Far above the slowest delivery that a seed draws.
constexpr std::chrono::milliseconds kTimeout{100};

void run_suite(SeedRun& run) {
  const Drawn drawn = draw(run);
  const simulated::Options options{.ranks = drawn.of.shape.ranks,
                                   .arena_bytes = kArenaBytes,
                                   .timeout = kTimeout,
                                   .epoch_before = drawn.epoch_before};
  simulated::run(run, options, [&](World& world) { Program(world, drawn).run(); }).require_clean();
}

const bool registered = simulation::add_suite(
    {.name = "low_latency_formats",
     .what = "ranks that differ in a format are named, and nobody takes what they send",
     .run = run_suite,
     .reaches = {{"epochs wrap", 100}, {"epochs pass a half", 60}},
     .seeds = 2000});

}  // namespace
}  // namespace tokenyard::test
