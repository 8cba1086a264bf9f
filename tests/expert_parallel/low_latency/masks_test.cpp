/// Ranks that do not take part, are late, or come back: masks, and how they are cleared.
#include <gmock/gmock.h>

#include <algorithm>

#include "expert_parallel/low_latency/replay.hpp"
#include "expert_parallel/low_latency/survivors.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/staged_pieces.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

constexpr std::chrono::milliseconds kTimeout{400};

const LowLatencyCase kCase{.shape = {.ranks = 3, .experts = 6, .hidden = 64, .topk = 3},
                           .tokens = {5, 4, 6}};

LowLatencyCase with_seed(uint32_t seed, uint32_t ranks = kCase.shape.ranks) {
  LowLatencyCase of = kCase;
  of.seed = seed;
  of.shape.ranks = ranks;
  of.shape.experts = 2 * ranks;
  of.tokens.resize(ranks);
  return of;
}

class LowLatencyMasks : public OnDevice {
 protected:
  /// Creates ranks that may launch at any time: on GPUs one each, since ranks that share one are
  /// launched together. None if there are too few.
  std::vector<std::unique_ptr<World>> worlds_apart() const {
    if (GetParam() == "host") return worlds(3);
    auto all = worlds(2);
    if (accelerator_of(*all[0]).device_index() == accelerator_of(*all[1]).device_index()) return {};
    return all;
  }
};

LowLatencyCall without_ranks(const LowLatencyCase& of, const std::set<uint32_t>& without) {
  LowLatencyCall call;
  for (uint32_t rank = 0; rank < of.shape.ranks; ++rank)
    call.active.push_back(!without.contains(rank));
  return call;
}

/// Returns the first difference of a batch in which `without` take no part.
std::string difference_without(LowLatency& exchange, const LowLatencyCase& of,
                               const std::set<uint32_t>& without, const LowLatencyCall& call) {
  const std::vector<Tokens> all = of.draw();
  const Tokens& mine = all[exchange.world().rank()];
  const LowLatencyTokens tokens(exchange.world(), of, mine);
  const LowLatencyReceived received = exchange.dispatch(tokens.input(), call);
  std::string text = difference_after_dispatch(exchange, of, all, received, without);
  const TensorView y = exchange.combine_buffer(received.handle);
  run_experts(exchange, of, all, y, without);
  const CombineOnDevice combined(exchange, of, mine);
  exchange.combine(combined.what(y, tokens), received.handle, call);
  return text + difference_after_combine(exchange, of, mine, combined, without);
}

/// Returns the ranks that are masked according to the device.
std::set<uint32_t> written_mask(LowLatency& exchange) {
  const uint32_t ranks = exchange.world().size();
  DeviceArray<int32_t> mask(accelerator_of(exchange.world()), ranks);
  mask.poison();
  exchange.write_mask(mask.view({ranks}));
  exchange.wait();
  const std::vector<int32_t> words = mask.read();
  std::set<uint32_t> masked;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    if (words[rank] != 0) masked.insert(rank);
  return masked;
}

TEST_P(LowLatencyMasks, ARankThatIsLeftOutIsMaskedUntilTheMaskIsCleared) {
  const auto all = worlds(kCase.shape.ranks);
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, kCase.options());
    EXPECT_EQ(difference_after_batch(exchange, with_seed(1), with_seed(1).draw()), "");
    world.barrier("all are here");
    // Rank 1 makes its calls alone, so that all ranks have the same epochs.
    const std::set<uint32_t> without =
        world.rank() == 1 ? std::set<uint32_t>{0, 2} : std::set<uint32_t>{1};
    EXPECT_EQ(difference_without(exchange, with_seed(2), without, without_ranks(kCase, without)),
              "");
    const std::vector<FailedRank> masked = exchange.failed_ranks();
    ASSERT_EQ(masked.size(), without.size());
    EXPECT_EQ(masked[0].rank, *without.begin());
    EXPECT_EQ(masked[0].why, FailedRank::Why::left_out);
    EXPECT_EQ(written_mask(exchange), without);
    // Listing every rank as active does not clear the mask.
    EXPECT_EQ(difference_after_batch(exchange, with_seed(3), with_seed(3).draw(), without), "");
    world.barrier("nobody calls");
    exchange.clear_mask();
    world.barrier("all masks are cleared");
    EXPECT_EQ(difference_after_batch(exchange, with_seed(4), with_seed(4).draw()), "");
    EXPECT_TRUE(exchange.failed_ranks().empty());
    EXPECT_TRUE(written_mask(exchange).empty());
  }));
}

/// Rank 1 communicates with no rank, and the others do not know.
TEST_P(LowLatencyMasks, ASilentRankIsWaitedForUntilTheDeadline) {
  const auto all = worlds(kCase.shape.ranks);
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, kCase.options());
    const bool silent = world.rank() == 1;
    const std::set<uint32_t> without = silent ? std::set<uint32_t>{0, 2} : std::set<uint32_t>{1};
    LowLatencyCall call = silent ? without_ranks(kCase, without) : LowLatencyCall{};
    call.timeout = kTimeout;
    EXPECT_EQ(difference_without(exchange, with_seed(1), without, call), "");
    if (!silent) {
      ASSERT_EQ(exchange.failed_ranks().size(), 1u);
      EXPECT_EQ(exchange.failed_ranks()[0].rank, 1u);
      EXPECT_EQ(exchange.failed_ranks()[0].why, FailedRank::Why::timeout);
      EXPECT_EQ(exchange.failed_ranks()[0].phase, "low latency dispatch: ids");
      EXPECT_GE(exchange.failed_ranks()[0].waited_s,
                std::chrono::duration<double>(kTimeout).count());
      EXPECT_EQ(exchange.failed_ranks()[0].expected,
                1u);  // The first dispatch; nothing came before.
      EXPECT_EQ(exchange.failed_ranks()[0].seen, 0u);
      EXPECT_THAT(exchange.failed_ranks()[0].text,
                  testing::StartsWith("rank 1 did not answer in phase \"low latency dispatch: "
                                      "ids\": expected 1, seen 0, after 0."));
      EXPECT_EQ(written_mask(exchange), without);
    }
    for (uint32_t seed = 2; seed < 5; ++seed)
      EXPECT_EQ(difference_after_batch(exchange, with_seed(seed), with_seed(seed).draw(), without),
                "");
  }));
}

/// Rank 0 masks the others before a combine, and makes its sends while they would accept them.
void combine_with_masked_owners(const std::vector<std::unique_ptr<World>>& all, uint32_t topk) {
  LowLatencyCase of = with_seed(1, static_cast<uint32_t>(all.size()));
  of.shape.topk = topk;
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, of.options());
    const std::vector<Tokens> tokens = of.draw();
    const LowLatencyTokens mine(world, of, tokens[world.rank()]);
    const LowLatencyReceived received = exchange.dispatch(mine.input());
    exchange.wait();
    const TensorView y = exchange.combine_buffer(received.handle);
    run_experts(exchange, of, tokens, y);
    std::set<uint32_t> without = {0};
    if (world.rank() == 0) {
      without.clear();
      for (uint32_t rank = 1; rank < world.size(); ++rank) without.insert(rank);
      for (const uint32_t rank : without) exchange.update_mask(rank, true);
    } else {
      world.barrier("rank 0 would have sent its rows");
    }
    const CombineOnDevice combined(exchange, of, tokens[world.rank()]);
    exchange.combine(combined.what(y, mine), received.handle, {.timeout = kTimeout, .hook = true});
    if (world.rank() == 0) world.barrier("rank 0 would have sent its rows");
    exchange.wait();
    world.barrier("all have sent");  // So nobody but rank 0 is late, however slow the machine.
    exchange.receive(received.handle);
    EXPECT_EQ(difference_after_combine(exchange, of, tokens[world.rank()], combined, without), "");
  }));
}

/// With one choice per token all rows leave unchanged and wait for no weights. With three some do,
/// and leave before those that wait.
TEST_P(LowLatencyMasks, AnOwnerThatIsMaskedBeforeACombineIsSentNothing) {
  for (const uint32_t topk : {1, 3}) {
    const auto all = worlds_apart();
    if (all.empty()) GTEST_SKIP() << "a GPU a rank is needed";
    combine_with_masked_owners(all, topk);
  }
}

TEST_P(LowLatencyMasks, AMaskCanBeSetAndClearedByHand) {
  const auto all = worlds(kCase.shape.ranks);
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, kCase.options());
    const std::set<uint32_t> without =
        world.rank() == 2 ? std::set<uint32_t>{0, 1} : std::set<uint32_t>{2};
    for (const uint32_t rank : without) exchange.update_mask(rank, true);
    // Before any kernel knows of it.
    ASSERT_EQ(exchange.failed_ranks().size(), without.size());
    EXPECT_EQ(exchange.failed_ranks()[0].text,
              fmt::format("rank {} was left out by the caller", *without.begin()));
    EXPECT_EQ(written_mask(exchange), without);
    EXPECT_EQ(difference_after_batch(exchange, with_seed(1), with_seed(1).draw(), without), "");
    EXPECT_EQ(exchange.failed_ranks().size(), without.size());
    world.barrier("nobody calls");
    for (const uint32_t rank : without) exchange.update_mask(rank, false);
    world.barrier("all masks are cleared");
    for (uint32_t seed = 2; seed < 5; ++seed)
      EXPECT_EQ(difference_after_batch(exchange, with_seed(seed), with_seed(seed).draw()), "");
  }));
}

/// The last rank misses the deadline, finds that no rank communicates with it, and comes back.
TEST_P(LowLatencyMasks, ALateRankIsMaskedAndComesBackAtAnAgreedEpoch) {
  const auto all = worlds_apart();
  if (all.empty()) GTEST_SKIP() << "a GPU a rank is needed";
  const auto ranks = static_cast<uint32_t>(all.size());
  const uint32_t last = ranks - 1;
  expect_none_failed(run_ranks(all, [&](World& world) {
    const auto difference = [&](LowLatency& exchange, uint32_t seed,
                                const std::set<uint32_t>& absent = {}) {
      const LowLatencyCase of = with_seed(seed, ranks);
      return difference_after_batch(exchange, of, of.draw(), absent);
    };
    LowLatency exchange(world, with_seed(1, ranks).options());
    const bool late = world.rank() == last;
    EXPECT_EQ(difference(exchange, 1), "");
    const LowLatencyCase second = with_seed(2, ranks);
    const std::vector<Tokens> tokens = second.draw();
    const LowLatencyTokens mine(world, second, tokens[world.rank()]);
    if (late) world.barrier("the others have given up");
    LowLatencyReceived received =
        exchange.dispatch(mine.input(), {.timeout = kTimeout, .hook = false});
    if (late) {
      // Data that the others sent before they gave up is there; their sums will not be.
      exchange.wait();
    } else {
      EXPECT_EQ(difference_after_dispatch(exchange, second, tokens, received, {last}), "");
      ASSERT_EQ(exchange.failed_ranks().size(), 1u);
      EXPECT_EQ(exchange.failed_ranks()[0].rank, last);
      EXPECT_EQ(exchange.failed_ranks()[0].why, FailedRank::Why::timeout);
      EXPECT_EQ(exchange.failed_ranks()[0].phase, "low latency dispatch: ids");
      world.barrier("the others have given up");
      // Later batches continue without it, whatever it still sends.
      for (uint32_t seed = 3; seed < 6; ++seed) EXPECT_EQ(difference(exchange, seed, {last}), "");
    }
    received.handle.reset();
    // The caller's own agreement: streams are drained, and the epoch is the largest.
    exchange.wait();
    const uint32_t agreed = agreed_epoch(exchange);
    EXPECT_THROW(exchange.restart(exchange.epoch() - 1), InvalidArgument);
    exchange.restart(agreed);
    world.barrier("all have restarted");
    EXPECT_TRUE(exchange.failed_ranks().empty());
    for (uint32_t seed = 6; seed < 9; ++seed) EXPECT_EQ(difference(exchange, seed), "");
    EXPECT_TRUE(exchange.failed_ranks().empty());
    exchange.close();
  }));
}

/// Data that arrives before the deadline is exact, and missing data is named.
TEST_P(LowLatencyMasks, ADeadlineMayBeShorterThanAHealthyExchange) {
  const auto all = worlds(2);
  LowLatencyCase of = kCase;
  of.shape.ranks = 2;
  of.tokens = {6, 5};
  expect_none_failed(run_ranks(all, [&](World& world) {
    LowLatency exchange(world, of.options());
    const uint32_t other = 1 - world.rank();
    Survivor survivor(exchange, other);
    for (uint32_t seed = 1; seed < 6; ++seed) {
      LowLatencyCase now = of;
      now.seed = seed;
      SurvivorBatch batch(survivor, now, false);
      batch.call.timeout = std::chrono::nanoseconds(1);
      batch.dispatch(false);
      batch.combine(false);
    }
  }));
}

/// A rank that does not close may still store to the memory, so it is not reused; that is an error
/// if the rank was not known to be silent.
TEST(LowLatencyClose, KeepsTheMemoryOfAnExchangeThatNotEverybodyCloses) {
  for (const bool known : {true, false}) {
    const auto all =
        World::in_process(2, "host", {.timeout = kTimeout, .arena_bytes = size_t{1} << 20});
    expect_none_failed(run_ranks(all, [&](World& world) {
      const size_t before = arena_of(world).used();
      {
        LowLatency exchange(world, with_seed(1, 2).options());
        if (world.rank() == 1) return;
        if (known) {
          exchange.update_mask(1, true);
          exchange.close();
        } else {
          EXPECT_THROW(exchange.close(), PeerTimeout);
        }
        EXPECT_THROW(exchange.check(), InvalidArgument) << "it is closed";
        exchange.close();  // Closing again does nothing.
      }
      EXPECT_GT(arena_of(world).used(), before);
    }));
  }
}

constexpr uint16_t kHalf = 0x3f00, kOne = 0x3f80, kOneAndAHalf = 0x3fc0, kThree = 0x4040;

/// A token's choices on two ranks with two experts each, the partial sum that the second rank
/// sends, and the number of choices in it.
struct SecondRanksSum {
  std::vector<int32_t> ids;
  std::vector<float> weights;  ///< half of the weight on either rank
  uint16_t staged;
  int32_t choices;
};

/// Receives a partial sum that lacks a chunk: the token's owner counts none of it.
void receive_without(uint32_t chunk, const SecondRanksSum& sent) {
  constexpr uint32_t kHidden = 1024, kPiecesAChunk = 32;
  const auto all = World::in_process(2, "host", {.arena_bytes = size_t{1} << 20});
  expect_none_failed(run_ranks(all, [&](World& world) {
    const bool owner = world.rank() == 0;
    LowLatency exchange(world, {.experts = 4, .hidden = kHidden, .topk = 3, .tokens_max = 1});
    const std::vector<uint16_t> x(kHidden, kOne);
    const uint32_t tokens = owner ? 1 : 0;
    const LowLatencyReceived received =
        exchange.dispatch({.x = {x.data(), DataType::bfloat16, {tokens, kHidden}},
                           .topk_idx = {sent.ids.data(), {tokens, 3}},
                           .rows = LowLatencyRows::bf16},
                          {});
    const TensorView y = exchange.combine_buffer(received.handle);
    std::fill_n(y.as<uint16_t>(), 2 * 2 * kHidden,
                owner ? kOne : kThree);  // Two experts, two rows each.
    std::vector<uint16_t> out(kHidden);
    int32_t lost = -1;
    LowLatencyCall call{.hook = true};
    call.timeout = std::chrono::milliseconds(100);
    exchange.combine({.y = y,
                      .topk_weights = {sent.weights.data(), {tokens, 3}},
                      .out = {out.data(), DataType::bfloat16, {tokens, kHidden}},
                      .lost = {&lost, {tokens}}},
                     received.handle, call);
    world.barrier("sums are on their way");
    if (owner) {
      const std::vector<std::byte*> pieces =
          await_staged_pieces(world, 0, sent.staged, kHidden / 8);
      ASSERT_EQ(pieces.size(), kHidden / 8);
      for (uint32_t i = 0; i < kPiecesAChunk; ++i)
        std::memset(pieces[chunk * kPiecesAChunk + i], 0xff, 16);
    }
    exchange.receive(received.handle);
    exchange.wait();
    if (!owner) return;
    EXPECT_EQ(lost, sent.choices);
    for (uint32_t channel = 0; channel < kHidden; ++channel)
      ASSERT_EQ(out[channel], kHalf) << "channel " << channel << " without chunk " << chunk;
  }));
}

TEST(LowLatencyVotes, ARowOfSumsOfWhichAPartIsMissingCountsInNoChannel) {
  const SecondRanksSum of_two{{0, 2, 3}, {0.5f, 0.25f, 0.25f}, kOneAndAHalf, 2};
  for (const uint32_t chunk : {0, 1, 2, 3}) receive_without(chunk, of_two);
}

TEST(LowLatencyVotes, NorDoesARowThatIsAloneOfWhichAPartIsMissing) {
  const SecondRanksSum of_one{{0, 1, 2}, {0.25f, 0.25f, 0.5f}, kThree, 1};
  for (const uint32_t chunk : {0, 1, 2, 3}) receive_without(chunk, of_one);
}

INSTANTIATE_ON_DEVICES(LowLatencyMasks);

}  // namespace
}  // namespace tokenyard::test
