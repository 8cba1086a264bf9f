/// A route keeps what calls on it read, and no rows. So many routes fit where the rows of only a
/// few do, as in a trainer that keeps one per layer until its backward pass.
#include "expert_parallel/by_expert/expert_rows_layout.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/recording_accelerator.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "fabric/arena.hpp"
#include "fabric/sub_allocator.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

const ExchangeCase kCase{.shape = {.ranks = 2, .experts = 8, .hidden = 512, .topk = 4},
                         .tokens = {50, 61},
                         .picking = {.none = 0.2}};

class KeptRoutes : public OnDevice {
 protected:
  static constexpr size_t kArena = size_t{576} << 10;

  std::vector<std::unique_ptr<World>> narrow_worlds() const {
    return World::in_process(2, GetParam(),
                             {.timeout = std::chrono::seconds(20), .arena_bytes = kArena});
  }
};

/// Returns one layer's tokens on both ranks.
std::vector<Tokens> drawn(uint32_t layer) {
  ExchangeCase with_seed = kCase;
  with_seed.seed = layer + 1;
  return with_seed.draw();
}

/// Goes forward with a layer's rows still present when the next layer's arrive, then back to the
/// first: every route's rows are dispatched again and combined.
TEST_P(KeptRoutes, AreManyWhereTheRowsOfFewLayersFindRoom) {
  constexpr uint32_t kLayers = 40;
  const auto all = narrow_worlds();
  expect_none_failed(run_ranks(all, [&](World& world) {
    const uint32_t rank = world.rank();
    ExpertParallel exchange(world, kCase.options());
    std::vector<Route> routes;
    size_t rows = 0;
    for (int step = 0; step < 2; ++step) {
      Received last;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const std::vector<Tokens> tokens_of = drawn(layer);
        const TokensOnDevice tokens(accelerator_of(world), tokens_of[rank], true);
        const Received received = exchange.dispatch(tokens.input());
        EXPECT_EQ(difference(exchange, received, expected_on(kCase.shape, tokens_of, rank)), "");
        routes.push_back(*received.route);
        rows += received.rows;
        last = received;
      }
      last = {};
      for (uint32_t layer = kLayers; layer-- > 0;) {
        const std::vector<Tokens> tokens_of = drawn(layer);
        const Expected expected = expected_on(kCase.shape, tokens_of, rank);
        const DeviceArray<uint16_t> x(accelerator_of(world), tokens_of[rank].x);
        const Received again =
            exchange.dispatch({.x = x.bf16_rows(exchange.options().hidden)}, routes[layer]);
        EXPECT_EQ(difference(exchange, again, expected), "");
        for (const bool in_place : {true, false})
          EXPECT_EQ(
              difference_after_combine(exchange, again, kCase.shape, tokens_of[rank], expected,
                                       {.in_place = in_place, .with_weights = true}),
              "");
        routes.pop_back();
      }
    }
    EXPECT_GT(rows / 2 * kCase.shape.hidden * 2, 3 * kArena) << "the arena is not narrow";
  }));
}

/// A rank's exchange with a layer's tokens, and memory that its calls keep.
struct Keeping {
  Keeping(World& of_rank, const std::vector<Tokens>& tokens_of)
      : world(of_rank),
        exchange(world, kCase.options()),
        tokens(accelerator_of(world), tokens_of[world.rank()], true),
        rows(static_cast<uint32_t>(expected_on(kCase.shape, tokens_of, world.rank()).rows.size())),
        memory(memory_of(exchange, kCase.tokens[world.rank()], rows)),
        idle(arena_of(world).used()) {}

  /// Returns bytes used in the arena once all calls have ended.
  size_t used() {
    exchange.wait();
    return arena_of(world).used() - idle;
  }

  World& world;
  ExpertParallel exchange;
  const TokensOnDevice tokens;
  const uint32_t rows;  ///< rows that the rank receives
  const ExpertParallel::Memory memory;
  const size_t idle;
};

/// Exactly the predicted bytes, in whatever order objects are dropped.
TEST_P(KeptRoutes, KeepWhatIsPredicted) {
  const auto all = worlds(2);
  const std::vector<Tokens> tokens_of = drawn(0);
  expect_none_failed(run_ranks(all, [&](World& world) {
    Keeping keeping(world, tokens_of);
    ExpertParallel& exchange = keeping.exchange;
    const TokensOnDevice& tokens = keeping.tokens;
    const ExpertParallel::Memory& memory = keeping.memory;
    const auto used = [&] { return keeping.used(); };
    for (const bool rows_first : {true, false}) {
      auto received = std::make_unique<Received>(exchange.dispatch(tokens.input()));
      std::vector<Route> route{*received->route};
      EXPECT_EQ(used(), memory.kept_bytes);
      if (rows_first) {
        received.reset();
        EXPECT_EQ(used(), memory.kept_by_route_bytes);
        route.clear();
      } else {
        route.clear();
        EXPECT_EQ(used(), memory.kept_bytes);
        const std::shared_ptr<void> of_rows = received->owner;
        received.reset();
        EXPECT_EQ(used(), memory.kept_bytes - memory.kept_by_route_bytes);
      }
      EXPECT_EQ(used(), 0u);
    }
    {
      const Received nothing = exchange.dispatch(DispatchInput{});
      EXPECT_EQ(used(), memory_of(exchange, 0, 0).kept_bytes);
    }
    // Rows dispatched again have memory of their own, so the route keeps no more.
    const Route route = *exchange.dispatch(tokens.input()).route;
    {
      const Received again = exchange.dispatch({.x = tokens.input().x}, route);
      EXPECT_EQ(used(), memory.kept_bytes);
    }
    EXPECT_EQ(used(), memory.kept_by_route_bytes);
  }));
}

/// Everything that a combine reads stays when the caller drops the rows, whichever call grouped
/// them.
TEST_P(KeptRoutes, OfRowsByExpertThatAreForgottenWhereTheyLieIsKept) {
  const auto all = worlds(2);
  const std::vector<Tokens> tokens_of = drawn(0);
  expect_none_failed(run_ranks(all, [&](World& world) {
    Keeping keeping(world, tokens_of);
    ExpertParallel& exchange = keeping.exchange;
    const DispatchInput input = keeping.tokens.input();
    for (const bool at_once : {false, true}) {
      ExpertRows rows;
      if (at_once)
        rows = exchange.dispatch_by_expert(input, {.alignment = 8}).rows;
      else
        rows = exchange.group_by_expert(exchange.dispatch(input), {.alignment = 8});
      const size_t before = keeping.used();
      rows.forget_rows();
      EXPECT_EQ(before - keeping.used(),
                SubAllocator::rounded(size_t{rows.rows} * kCase.shape.hidden * 2));
      const expert_major::ExpertRowsLayout layout{
          .rows = rows.rows,
          .received = keeping.rows,
          .topk = kCase.shape.topk,
          .local_experts = kCase.shape.local_experts(world.rank()),
          .row_bytes = 0,
          .scale_words = 0,
          .scale_order = ScaleOrder::rows};
      if (!at_once) {
        EXPECT_EQ(keeping.used(), keeping.memory.kept_by_route_bytes + layout.bytes());
      }
      rows = {};
      EXPECT_EQ(keeping.used(), 0u);
    }
  }));
}

TEST_P(KeptRoutes, OfCallsThatNoHostWaitsForKeepPlacesAndNoRows) {
  const auto all = worlds(2);
  const std::vector<Tokens> tokens_of = drawn(0);
  expect_none_failed(run_ranks(all, [&](World& world) {
    constexpr uint32_t kPlaces = 111;
    const uint32_t rank = world.rank();
    Accelerator& accelerator = accelerator_of(world);
    ExpertParallel exchange(world, kCase.options());
    const TokensOnDevice tokens(accelerator, tokens_of[rank], true);
    DispatchInput input = tokens.input();
    input.received_tokens_max = kPlaces;
    const size_t idle = arena_of(world).used();
    const Route route = *exchange.dispatch(input).route;
    DeviceArray<uint16_t> out(accelerator, tokens_of[rank].x.size());
    for (int i = 0; i < 5; ++i) {
      const Received again = exchange.dispatch({.x = input.x}, route);
      std::vector<uint16_t> y =
          expert_rows(kCase.shape, expected_on(kCase.shape, tokens_of, rank), rank);
      y.resize(size_t{kPlaces} * kCase.shape.hidden, 0x7fff);
      const DeviceArray<uint16_t> results(accelerator, y);
      out.poison();
      exchange.combine({.y = results.bf16_rows(exchange.options().hidden)}, route,
                       {.x = out.bf16_rows(exchange.options().hidden)});
      exchange.wait();
      EXPECT_EQ(difference("out", out.read(), expected_sums(kCase.shape, tokens_of[rank], rank)),
                "");
    }
    exchange.wait();
    const ExpertParallel::Memory memory = memory_of(exchange, kCase.tokens[rank], kPlaces);
    EXPECT_EQ(arena_of(world).used() - idle, memory.kept_by_route_bytes);
  }));
}

/// Rows dropped while a combine on another stream reads them are not reused by a later call on the
/// stream that they were received on; nor are recorded ones.
TEST_P(KeptRoutes, LeaveRowsToWhatStillReadsThem) {
  const auto all = worlds(2);
  const std::vector<Tokens> tokens_of = drawn(0), others_of = drawn(1);
  expect_none_failed(run_ranks(all, [&](World& world) {
    Accelerator& accelerator = accelerator_of(world);
    const uint32_t rank = world.rank(), hidden = kCase.shape.hidden;
    const Stream first = accelerator.make_stream(), second = accelerator.make_stream();
    {
      ExpertParallelOptions options = kCase.options();
      options.sms = 4;  // A GPU has multiprocessors for calls of both exchanges at once.
      ExpertParallel exchange(world, options);
      ExpertParallel another(world, options);
      const TokensOnDevice tokens(accelerator, tokens_of[rank], true);
      const TokensOnDevice others(accelerator, others_of[rank], true);
      DeviceArray<uint16_t> out(accelerator, tokens_of[rank].x.size());
      const Expected expected = expected_on(kCase.shape, tokens_of, rank);
      DeviceArray<uint16_t> seen(accelerator, expected.x.size());
      std::vector<uint16_t> sums;
      for (uint32_t token = 0; token < tokens_of[rank].count; ++token)
        for (uint32_t column = 0; column < hidden; ++column) {
          const uint16_t value = tokens_of[rank].x[size_t{token} * hidden + column];
          float sum = 0;
          for (uint32_t there = 0; there < 2; ++there)
            if (goes_to(kCase.shape, tokens_of[rank], token, there)) sum += from_bf16(value);
          sums.push_back(to_bf16(sum));
        }
      for (int i = 0; i < 10; ++i) {
        out.poison();
        seen.poison();
        auto received = std::make_unique<Received>(exchange.dispatch(tokens.input(), first));
        const Route route = *received->route;
        exchange.combine({.y = received->x}, route, {.x = out.bf16_rows(exchange.options().hidden)},
                         second);
        received->record_stream(second);
        accelerator.copy(seen.data(), received->x.data, expected.x.size() * 2, second);
        received.reset();
        // Reuses the memory of the rows as soon as that is allowed.
        const Received after = another.dispatch(others.input(), first);
        exchange.wait(second);
        another.wait(first);
        EXPECT_EQ(difference("out", out.read(), sums), "");
        EXPECT_EQ(difference("seen", seen.read(), expected.x), "");
      }
    }
    accelerator.free_stream(first);
    accelerator.free_stream(second);
  }));
}

INSTANTIATE_ON_DEVICES(KeptRoutes);

/// Peers may still write to both.
TEST(KeptRoutesOnHost, AFailedCallsRowsAndRouteBothStayOutOfUse) {
  const auto all = World::in_process(
      2, "host", {.timeout = std::chrono::seconds(1), .arena_bytes = size_t{4} << 20});
  const std::vector<Tokens> tokens_of = drawn(0);
  expect_none_failed(run_ranks(all, [&](World& world) {
    const uint32_t rank = world.rank();
    const size_t empty = arena_of(world).used();
    std::optional<ExpertParallel> exchange(std::in_place, world, kCase.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[rank], true);
    auto received = std::make_unique<Received>(exchange->dispatch(tokens.input()));
    const ExpertParallel::Memory memory = memory_of(*exchange, kCase.tokens[rank], received->rows);
    if (rank == 1) return;
    EXPECT_THROW(exchange->dispatch(tokens.input()), PeerTimeout);
    std::vector<Route> route{*received->route};
    received.reset();
    EXPECT_EQ(arena_of(world).used() - empty,
              memory.arena_bytes + memory.kept_bytes + memory.peak_bytes);
    route.clear();
    exchange.reset();
    EXPECT_EQ(arena_of(world).used() - empty,
              memory.arena_bytes + memory.kept_bytes + memory.peak_bytes);
  }));
}

/// Rows that a combine reads in place on another stream are not reused on the stream that they were
/// received on before it has ended, even if the caller has dropped them.
TEST(KeptRoutesOnHost, LeaveRowsToACombineOnAnotherStream) {
  const auto worlds =
      recording_worlds(1, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{4} << 20});
  RecordingAccelerator& gpu = recording_accelerator(*worlds[0]);
  ExchangeCase alone = kCase;
  alone.shape.ranks = 1;
  alone.tokens = {40};
  const std::vector<Tokens> tokens_of = alone.draw();
  ExpertParallel exchange(*worlds[0], alone.options());
  const TokensOnDevice tokens(gpu, tokens_of[0], true);
  DeviceArray<uint16_t> out(gpu, tokens_of[0].x.size());
  DispatchInput input = tokens.input();
  input.received_tokens_max = 40;
  const Stream own{1}, other{2};
  gpu.keep_busy(own);
  gpu.keep_busy(other);
  for (const Stream stream : {own, other}) {
    const void* x = nullptr;
    std::vector<Route> route;
    {
      const Received received = exchange.dispatch(input, own);
      exchange.combine({.y = received.x}, *received.route,
                       {.x = out.bf16_rows(exchange.options().hidden)}, stream);
      x = received.x.data;
      route.push_back(*received.route);
    }
    const Received next = exchange.dispatch(input, own);
    EXPECT_EQ(next.x.data == x, stream == own);
  }
  gpu.let_go(own);
  gpu.let_go(other);
}

/// Replays of a graph use fixed addresses: the route keeps all memory that captured calls use.
TEST(KeptRoutesOnHost, OfCapturedCallsKeepTheirRows) {
  const auto worlds =
      recording_worlds(1, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{4} << 20});
  World& world = *worlds[0];
  RecordingAccelerator& gpu = recording_accelerator(world);
  ExchangeCase alone = kCase;
  alone.shape.ranks = 1;
  alone.tokens = {40};
  const std::vector<Tokens> tokens_of = alone.draw();
  alone.seed = 2;
  const std::vector<Tokens> others_of = alone.draw();
  ExpertParallel exchange(world, alone.options());
  const TokensOnDevice tokens(gpu, tokens_of[0], true);
  const TokensOnDevice others(gpu, others_of[0], true);
  DeviceArray<uint16_t> out(gpu, tokens_of[0].x.size());
  DispatchInput input = tokens.input();
  input.received_tokens_max = 40;
  const ExpertParallel::Memory memory = memory_of(exchange, 40, 40);
  const size_t idle = arena_of(world).used();
  {
    std::vector<Route> route;
    const auto replay = gpu.record([&] {
      const Received received = exchange.dispatch(input);
      route.push_back(*received.route);
      exchange.combine({.y = received.x}, route[0],
                       {.x = out.bf16_rows(exchange.options().hidden)});
    });
    EXPECT_EQ(arena_of(world).used() - idle, memory.kept_bytes);
    // Memory of calls in between must be elsewhere.
    const Received other = exchange.dispatch(others.input());
    replay();
    EXPECT_EQ(difference(exchange, other, expected_on(alone.shape, others_of, 0)), "");
  }
  for (int i = 0; i < 10; ++i) arena_of(world).used();  // Events are not done when first queried.
  EXPECT_EQ(arena_of(world).used(), idle);
}

}  // namespace
}  // namespace tokenyard::test
