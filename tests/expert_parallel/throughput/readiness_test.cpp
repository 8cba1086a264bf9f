/// Kernels that start on rows before all rows have arrived.
#include "expert_parallel/exchange_case.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/watched.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

ExchangeCase case_of(uint32_t ranks) {
  ExchangeCase drawn{.shape = {.ranks = ranks, .experts = 12, .hidden = 72, .topk = 3},
                     .tokens = {40, 7, 0, 90},
                     .picking = {.none = 0.3}};
  drawn.tokens.resize(ranks);
  return drawn;
}

class Readiness : public OnDevice {};

void take_rows_as_they_come(World& world) {
  const ExchangeCase drawn = case_of(world.size());
  const std::vector<Tokens> given = drawn.draw();
  const Expected expected = expected_on(drawn.shape, given, world.rank());
  Accelerator& accelerator = accelerator_of(world);
  accelerator.prepare(watch_kernel.entry);
  ExpertParallel exchange(world, drawn.options());
  const TokensOnDevice tokens(accelerator, given[world.rank()], true);
  const SideStream beside(accelerator);
  DispatchInput input = tokens.input();
  input.watcher = beside.stream();
  const DispatchInput other_rows{.x = input.x, .watcher = input.watcher};
  const Sums wanted = expected_sums_of(drawn.shape, expected);
  std::optional<Received> received, again;
  for (uint32_t call = 0; call < 3; ++call) {
    EXPECT_EQ(watched(exchange, drawn.shape, input, nullptr, beside.stream(), received), wanted);
    EXPECT_EQ(watched(exchange, drawn.shape, other_rows, &*received->route, beside.stream(), again),
              wanted);
    exchange.wait();
  }
}

TEST_P(Readiness, AKernelTakesRowsAsTheyCome) {
  for (const uint32_t ranks : {2u, 4u})  // On a machine with two GPUs: one each, and one for all.
    expect_none_failed(run_ranks(worlds(ranks), take_rows_as_they_come));
}

TEST_P(Readiness, NobodyIsToldWhoDoesNotAsk) {
  const auto all = worlds(2);
  expect_none_failed(run_ranks(all, [&](World& world) {
    const ExchangeCase small{.shape = {.ranks = 2, .experts = 2, .hidden = 16, .topk = 1},
                             .tokens = {3, 2},
                             .picking = {}};
    const std::vector<Tokens> given = small.draw();
    ExpertParallel exchange(world, small.options());
    const TokensOnDevice tokens(accelerator_of(world), given[world.rank()], true);
    const Received received = exchange.dispatch(tokens.input());
    EXPECT_EQ(received.sources_ready.as<uint32_t>(), nullptr);
    EXPECT_EQ(received.experts_ready.as<uint32_t>(), nullptr);
    exchange.wait();
  }));
}

INSTANTIATE_ON_DEVICES(Readiness);

}  // namespace
}  // namespace tokenyard::test
