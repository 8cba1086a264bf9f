/// The calls that a rank of a simulated job makes on one world, with results that differ between
/// worlds, calls and ranks: a row of another epoch is never what is expected.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "expert_parallel/low_latency/checks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/world_access.hpp"
#include "simulation/suite.hpp"

namespace tokenyard::job_test {

/// Draws that all ranks share.
struct Shapes {
  bool low_latency = false;
  uint32_t experts_per_rank = 2, topk = 2, hidden = 16, tokens_most = 2, sms = 1;
  uint32_t seed = 0;
  bool rows_of_before = false;         ///< deliberately wrong: rank 0 sends those of another world
  std::chrono::nanoseconds timeout{};  ///< of a low-latency call, for a rank that is not lost
};

inline std::vector<uint32_t> absent_ranks(const World& world) {
  std::vector<uint32_t> absent;
  for (uint32_t rank = 0; rank < world.size(); ++rank)
    if (!is_present(world, rank)) absent.push_back(rank);
  return absent;
}

/// Makes calls on one world. Throws collectives::simulated::Broken where a result is wrong.
class ExchangeCalls {
 public:
  ExchangeCalls(World& world, const Shapes& shapes, uint32_t generation)
      : world_(world), shapes_(shapes), generation_(generation) {}
  virtual ~ExchangeCalls() = default;
  /// Dispatches and combines as call number `call` of all. Throws what the exchange throws.
  virtual void make(uint32_t call) = 0;
  /// Whether it goes on without a rank that takes part in this world.
  virtual bool misses_one() const { return false; }

 protected:
  void require(const char* what, uint32_t call, const std::string& difference) const {
    collectives::simulated::expect(difference.empty(),
                                   "rows: rank {} after {} {} in generation {}: {}", world_.rank(),
                                   what, call, generation_, difference);
  }

  World& world_;
  const Shapes shapes_;
  const uint32_t generation_;
};

inline uint32_t seed_of(const Shapes& shapes, uint32_t generation, uint32_t call) {
  return test::scramble(shapes.seed + test::scramble(generation * 64 + call));
}

class ThroughputCalls final : public ExchangeCalls {
 public:
  ThroughputCalls(World& world, const Shapes& shapes, uint32_t generation)
      : ExchangeCalls(world, shapes, generation), exchange_(world, drawn(0).options()) {}

  void make(uint32_t call) override {
    const test::ExchangeCase of = drawn(call);
    const std::vector<test::Tokens> given = of.draw(), all = of.counted(given);
    const uint32_t rank = world_.rank();
    const test::Expected expected = test::expected_on(of.shape, all, rank);
    test::Tokens mine = given[rank];
    if (shapes_.rows_of_before && rank == 0) mine.x = drawn(call, generation_ - 1).draw()[0].x;
    const test::TokensOnDevice tokens(accelerator_of(world_), mine, of.idx_is_int64);
    const Received received = exchange_.dispatch(tokens.input());
    require("dispatch", call, test::difference(exchange_, received, expected));
    require("combine", call,
            test::difference_after_combine(
                exchange_, received, of.shape, all[rank], expected,
                {.in_place = call % 2 == 0, .with_weights = false, .call = of.seed}));
  }

 private:
  test::ExchangeCase drawn(uint32_t call) const { return drawn(call, generation_); }
  test::ExchangeCase drawn(uint32_t call, uint32_t generation) const {
    const uint32_t seed = seed_of(shapes_, generation, call);
    test::ExchangeCase of{.shape = {.ranks = world_.size(),
                                    .experts = shapes_.experts_per_rank * world_.size(),
                                    .hidden = shapes_.hidden,
                                    .topk = shapes_.topk},
                          .tokens = std::vector<uint32_t>(world_.size(), shapes_.tokens_most),
                          .sms = shapes_.sms,
                          .seed = seed,
                          .absent = absent_ranks(world_)};
    for (const uint32_t rank : of.absent) of.tokens[rank] = 0;
    return of;
  }

  ExpertParallel exchange_;
};

class LowLatencyCalls final : public ExchangeCalls {
 public:
  LowLatencyCalls(World& world, const Shapes& shapes, uint32_t generation)
      : ExchangeCalls(world, shapes, generation), exchange_(world, drawn(0).options()) {
    for (const uint32_t rank : absent_ranks(world)) absent_.insert(rank);
  }

  void make(uint32_t call) override {
    const test::LowLatencyCase of = drawn(call);
    const std::vector<test::Tokens> all = of.draw();
    const uint32_t rank = world_.rank();
    const test::Tokens& mine = all[rank];
    const test::LowLatencyTokens tokens(world_, of, mine);
    const LowLatencyCall how{.timeout = shapes_.timeout, .sms = of.sms, .hook = of.hooks};
    const LowLatencyReceived received = exchange_.dispatch(tokens.input(), how);
    if (of.hooks) exchange_.receive(received.handle);
    exchange_.wait();
    const std::set<uint32_t> missing = missing_from(of, all, received);
    require("dispatch", call,
            test::difference_after_dispatch(exchange_, of, all, received, missing, masked()));
    const TensorView y = exchange_.combine_buffer(received.handle);
    test::run_experts(exchange_, of, all, y, missing);
    const test::CombineOnDevice combined(exchange_, of, mine);
    exchange_.combine(combined.what(y, tokens), received.handle, how);
    if (of.hooks) exchange_.receive(received.handle);
    exchange_.wait();
    check_sums(of, mine, combined, call);
  }
  bool misses_one() const override { return masked() != absent_; }

 private:
  test::LowLatencyCase drawn(uint32_t call) const {
    const uint32_t seed = seed_of(shapes_, generation_, call);
    return {.shape = {.ranks = world_.size(),
                      .experts = shapes_.experts_per_rank * world_.size(),
                      .hidden = shapes_.hidden,
                      .topk = shapes_.topk},
            .tokens = std::vector<uint32_t>(world_.size(), shapes_.tokens_most),
            .rows = shapes_.seed % 2 == 0 ? LowLatencyRows::bf16 : LowLatencyRows::fp8,
            .hooks = seed % 2 == 0,
            .sms = shapes_.sms,
            .seed = seed};
  }
  std::set<uint32_t> masked() const {
    std::set<uint32_t> ranks;
    for (const FailedRank& failed : exchange_.failed_ranks()) ranks.insert(failed.rank);
    return ranks;
  }
  /// Returns the absent ranks and those masked ones of which nothing has come. Others' rows may
  /// lack some bytes, but not one too many.
  std::set<uint32_t> missing_from(const test::LowLatencyCase& of,
                                  const std::vector<test::Tokens>& all,
                                  const LowLatencyReceived& received) const {
    const uint32_t rank = world_.rank();
    const std::vector<int32_t> full = test::expected_batch(of.shape, all, rank, absent_).ranges;
    const std::vector<int32_t> seen =
        test::read_back(accelerator_of(world_), received.ranges.as<int32_t>(), full.size());
    std::set<uint32_t> missing = absent_;
    for (const uint32_t source : masked()) {
      for (uint32_t expert = 0; expert < of.shape.local_experts(rank); ++expert) {
        const size_t count = (size_t{expert} * of.shape.ranks + source) * 2 + 1;
        if (seen[count] != full[count]) missing.insert(source);
      }
    }
    return missing;
  }
  /// A token that lost a choice with a masked rank is not what it would be; all others are.
  void check_sums(const test::LowLatencyCase& of, const test::Tokens& mine,
                  const test::CombineOnDevice& combined, uint32_t call) const {
    const std::vector<int32_t> lost = combined.lost.read();
    const std::vector<uint16_t> out = combined.out.read();
    for (uint32_t token = 0; token < mine.count; ++token) {
      const int32_t least =
          test::expected_sum(of.shape, mine, world_.rank(), token, absent_, of.seed).lost;
      if (lost[token] > least && misses_one()) continue;
      require("combine", call,
              test::difference_of_token(of, mine, world_.rank(), token, lost[token], out, absent_));
    }
  }

  LowLatency exchange_;
  std::set<uint32_t> absent_;
};

inline std::unique_ptr<ExchangeCalls> calls_on(World& world, const Shapes& shapes,
                                               uint32_t generation) {
  if (shapes.low_latency) return std::make_unique<LowLatencyCalls>(world, shapes, generation);
  return std::make_unique<ThroughputCalls>(world, shapes, generation);
}

}  // namespace tokenyard::job_test
