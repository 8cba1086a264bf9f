// Low latency in worlds with empty slots: their ranks are masked from the first call on, for good.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr uint32_t kRanks = 4;
const std::vector<std::vector<uint32_t>> kAbsences{{0}, {2}, {3}, {0, 1, 3}};

const LowLatencyCase kCase{.shape = {.ranks = kRanks, .experts = 10, .hidden = 64, .topk = 3},
                           .tokens = {5, 4, 6, 3}};

class LowLatencyAbsentRanks : public OnDevice {
 protected:
  void run(const std::function<void(World&, LowLatency&, const std::set<uint32_t>&)>& body) const {
    for (const std::vector<uint32_t>& absent : kAbsences) {
      SCOPED_TRACE(fmt::format("without {}", fmt::join(absent, ", ")));
      expect_none_failed(run_ranks(worlds(kRanks, absent), [&](World& world) {
        LowLatency exchange(world, kCase.options());
        body(world, exchange, {absent.begin(), absent.end()});
      }));
    }
  }
};
INSTANTIATE_ON_DEVICES(LowLatencyAbsentRanks);

/// Every row format, with and without hooks, and weights given early or late.
std::vector<LowLatencyCase> batches() {
  std::vector<LowLatencyCase> all;
  for (const LowLatencyRows rows : {LowLatencyRows::bf16, LowLatencyRows::fp8})
    for (const bool hooks : {false, true}) {
      LowLatencyCase of = kCase;
      of.rows = rows;
      of.hooks = hooks;
      of.early_weights = hooks ? 0b0101 : 0;
      of.seed = static_cast<uint32_t>(1 + all.size());
      all.push_back(of);
    }
  return all;
}

TEST_P(LowLatencyAbsentRanks, AreMaskedFromTheFirstCallOn) {
  run([](World&, LowLatency& exchange, const std::set<uint32_t>& absent) {
    const auto require_masked = [&] {
      std::set<uint32_t> masked;
      for (const FailedRank& rank : exchange.failed_ranks()) {
        masked.insert(rank.rank);
        EXPECT_EQ(rank.why, FailedRank::Why::left_out);
        EXPECT_EQ(rank.text,
                  fmt::format("rank {} was absent from the start: its slot is empty", rank.rank));
      }
      EXPECT_EQ(masked, absent);
    };
    require_masked();
    for (const LowLatencyCase& of : batches()) {
      EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), absent), "");
      require_masked();
    }
    exchange.close();
  });
}

/// Neither a cleared mask nor a restart readmits a rank that has no memory.
TEST_P(LowLatencyAbsentRanks, StayMasked) {
  run([](World& world, LowLatency& exchange, const std::set<uint32_t>& absent) {
    LowLatencyCase of = kCase;
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), absent), "");
    world.barrier("nobody calls");
    exchange.clear_mask();
    for (const uint32_t rank : absent) {
      EXPECT_THROW(exchange.update_mask(rank, false), InvalidArgument);
      exchange.update_mask(rank, true);
    }
    world.barrier("all masks are cleared");
    EXPECT_EQ(exchange.failed_ranks().size(), absent.size());
    ++of.seed;
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), absent), "");
    world.barrier("all are idle");
    exchange.restart(agreed_epoch(exchange));
    world.barrier("all have restarted");
    EXPECT_EQ(exchange.failed_ranks().size(), absent.size());
    ++of.seed;
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw(), absent), "");
  });
}

}  // namespace
}  // namespace tokenyard::test
