/// Kernels that start on rows before all rows have arrived.
#include <numeric>

#include "device/accelerator.hpp"
#include "expert_parallel/exchange_case.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/exchange_checks.hpp"
#include "expert_parallel/throughput/readiness_kernels.hpp"
#include "fabric/abort_flag.hpp"
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

/// A stream besides the default one.
class SideStream {
 public:
  explicit SideStream(Accelerator& accelerator)
      : accelerator_(accelerator), stream_(accelerator.make_stream()) {}
  ~SideStream() { accelerator_.free_stream(stream_); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  Stream stream() const { return stream_; }

 private:
  Accelerator& accelerator_;
  Stream stream_;
};

struct Sums {
  std::vector<uint32_t> of_sources, of_experts;
  bool operator==(const Sums&) const = default;
};

/// Returns the sums that the kernel must find, computed from the expected rows.
Sums expected_sums_of(const Shape& shape, const Expected& expected) {
  Sums sums{std::vector<uint32_t>(shape.ranks),
            std::vector<uint32_t>(expected.tokens_per_expert.size())};
  for (size_t row = 0; row < expected.rows.size(); ++row) {
    uint32_t sum = 0;
    for (size_t column = 0; column < shape.hidden; column += 2) {
      const size_t at = row * shape.hidden + column;
      sum += uint32_t{expected.x[at]} | uint32_t{expected.x[at + 1]} << 16;
    }
    sums.of_sources[expected.rows[row].source] += sum;
    for (size_t choice = row * shape.topk; choice < (row + 1) * shape.topk; ++choice)
      if (expected.ids[choice] >= 0)
        sums.of_experts[static_cast<size_t>(expected.ids[choice])] += sum;
  }
  return sums;
}

/// Returns the sums that a kernel finds which runs beside a dispatch of `input`.
Sums watched(ExpertParallel& exchange, const Shape& shape, const DispatchInput& input,
             const Route* route, Stream beside, std::optional<Received>& received_there) {
  World& world = exchange.world();
  Accelerator& accelerator = accelerator_of(world);
  const uint32_t local_experts = shape.local_experts(world.rank());
  // Before the call: an allocation or copy on its stream would wait for its end.
  const DeviceArray<uint32_t> first(accelerator, size_t{shape.ranks} + 1);
  const DeviceArray<uint32_t> of_sources(accelerator, shape.ranks),
      of_experts(accelerator, local_experts);
  const Received received =
      route == nullptr ? exchange.dispatch(input) : exchange.dispatch(input, *route);
  std::vector<uint32_t> first_rows{0};
  for (const uint32_t rows : received.rows_from) first_rows.push_back(first_rows.back() + rows);
  accelerator.copy(first.data(), first_rows.data(), first_rows.size() * sizeof(uint32_t), beside);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  launch(accelerator, watch_kernel,
         {.blocks = shape.ranks + local_experts, .warps = 2, .cooperative = false}, beside,
         {.sources_ready = received.sources_ready.as<uint32_t>(),
          .experts_ready = received.experts_ready.as<uint32_t>(),
          .x = received.x.as<uint32_t>(),
          .topk_idx = received.topk_idx.as<int32_t>(),
          .first_rows = first.data(),
          .ranks = shape.ranks,
          .local_experts = local_experts,
          .row_words = shape.hidden / 2,
          .topk = shape.topk,
          .of_sources = of_sources.data(),
          .of_experts = of_experts.data(),
          .wait_context = failure.wait_context(world.timeout())});
  await_all(accelerator, beside);
  const std::vector<std::string> phases{"a source's rows", "an expert's rows"};
  failure.check(phases);
  received_there = received;
  return {of_sources.read(), of_experts.read()};
}

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
