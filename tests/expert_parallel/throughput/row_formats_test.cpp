/// Rows of every type, with and without scales, and sums of the types that can be summed.
#include <bit>
#include <cmath>
#include <functional>

#include "device/numbers.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class RowFormats : public OnDevice {
 protected:
  void check(uint32_t ranks, uint32_t hidden, const RowFormat& format) {
    const auto all = worlds(ranks);
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(rank == 1 ? 0 : 19 + 3 * rank);
    const ExchangeCase exchange_case{
        .shape = {.ranks = ranks, .experts = 3 * ranks, .hidden = hidden, .topk = 3},
        .tokens = tokens,
        .picking = {.none = 0.2}};
    const std::vector<Tokens> drawn = exchange_case.draw();
    expect_none_failed(run_ranks(all, [&](World& world) {
      const Expected expected = expected_on(exchange_case.shape, drawn, world.rank());
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator_of(world), drawn[world.rank()],
                                  exchange_case.idx_is_int64);
      EXPECT_EQ(difference_in_format(exchange, tokens, expected, format), "")
          << name_of(format.type) << ", " << format.scale_words << " scales";
    }));
  }
};

TEST_P(RowFormats, RowsOfEveryTypeArriveBitForBit) {
  for (const DataType type :
       {DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3fn})
    for (const uint32_t ranks : {1, 2, 5}) check(ranks, 272, {.type = type});
}

TEST_P(RowFormats, OpaqueRowsHaveASizeOfTheirOwn) {
  for (const uint32_t row_bytes : {16u, 48u, 3600u, 30'000u / 16 * 16})
    check(3, 64, {.type = DataType::uint8, .row_bytes = row_bytes});
}

TEST_P(RowFormats, ScalesTravelBesideTheirRows) {
  for (const ScaleOrder order : {ScaleOrder::rows, ScaleOrder::columns})
    for (const uint32_t words : {1u, 4u, 7u, 56u})
      for (const uint32_t ranks : {1, 2, 4})
        check(ranks, 7168 / 8,
              {.type = DataType::float8_e4m3fn, .scale_words = words, .scale_order = order});
}

TEST_P(RowFormats, ScalesOfOpaqueRowsNeedNoMeaning) {
  check(4, 64, {.type = DataType::uint8, .row_bytes = 160, .scale_words = 20});
}

TEST_P(RowFormats, ManyRanksTakePart) {
  if (GetParam() == "cuda") GTEST_SKIP() << "more blocks than one GPU has room for";
  check(8, 144, {.type = DataType::float8_e4m3fn, .scale_words = 9});
}

TEST_P(RowFormats, ColumnsOfScalesBeginAlignedForTma) {
  const auto all = worlds(2);
  const ExchangeCase exchange_case{.shape = {.ranks = 2, .experts = 4, .hidden = 128, .topk = 2},
                                   .tokens = {5, 6}};
  const std::vector<Tokens> tokens_of = exchange_case.draw();
  expect_none_failed(run_ranks(all, [&](World& world) {
    ExpertParallel exchange(world, exchange_case.options());
    const TokensOnDevice tokens(accelerator_of(world), tokens_of[world.rank()], true);
    const DeviceArray<uint32_t> scales(accelerator_of(world), 6 * 3);
    DispatchInput input = tokens.input();
    input.scales = scales.view({tokens.count(), 3});
    input.scale_order = ScaleOrder::columns;
    const Received received = exchange.dispatch(input);
    EXPECT_EQ(received.scales.strides[1], (received.rows + 3) / 4 * 4);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(received.scales.data) % 16, 0u);
    exchange.wait();
  }));
}

/// Returns a value of y that depends on rank, row and column; exact in fp16 in half of the columns.
float value_of(uint32_t rank, Row row, uint32_t column) {
  const uint32_t hash = scramble(((rank * 64 + row.source) * 4096 + row.token) * 1024 + column);
  const float value = static_cast<float>(static_cast<int32_t>(hash)) * 0x1p-31f;
  return column % 2 == 0 ? std::floor(value * 512) / 64 : value;
}

struct Fp16 {
  using Bits = uint16_t;
  static constexpr DataType kType = DataType::float16;
  static Bits from(float value) { return static_cast<Bits>(to_float16_pair(value, 0)); }
  static float to(Bits bits) { return to_float(Float16{bits}); }
};
struct Fp32 {
  using Bits = uint32_t;
  static constexpr DataType kType = DataType::float32;
  static Bits from(float value) { return std::bit_cast<Bits>(value); }
  static float to(Bits bits) { return std::bit_cast<float>(bits); }
};
struct Bf16 {
  using Bits = uint16_t;
  static constexpr DataType kType = DataType::bfloat16;
  static Bits from(float value) { return to_bf16(value); }
  static float to(Bits bits) { return from_bf16(bits); }
};

/// Checks sums in fp32: the biases, then rows in rank order or another order, rounded once.
template <class Type>
void check_sums(World& world, const ExchangeCase& exchange_case, uint32_t biases,
                bool in_another_order) {
  const Shape& shape = exchange_case.shape;
  const std::vector<Tokens> all = exchange_case.draw();
  const Tokens& mine = all[world.rank()];
  Accelerator& accelerator = accelerator_of(world);
  ExpertParallel exchange(world, exchange_case.options());
  const TokensOnDevice tokens(accelerator, mine, true);
  const Received received = exchange.dispatch(tokens.input());
  std::vector<typename Type::Bits> y, bias[2], expected;
  std::vector<uint32_t> order;
  for (const Row row : expected_on(shape, all, world.rank()).rows)
    for (uint32_t column = 0; column < shape.hidden; ++column)
      y.push_back(Type::from(value_of(world.rank(), row, column)));
  for (uint32_t token = 0; token < mine.count; ++token) {
    // A different order for every token.
    for (uint32_t turn = 0; turn < shape.ranks; ++turn)
      order.push_back(in_another_order ? (token + shape.ranks - turn) % shape.ranks : turn);
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      float sum = 0;
      for (uint32_t i = 0; i < biases; ++i) {
        bias[i].push_back(Type::from(value_of(40 + i, {world.rank(), token}, column)));
        sum += Type::to(bias[i].back());
      }
      for (uint32_t turn = 0; turn < shape.ranks; ++turn) {
        const uint32_t there = order[size_t{token} * shape.ranks + turn];
        if (goes_to(shape, mine, token, there))
          sum += Type::to(Type::from(value_of(there, {world.rank(), token}, column)));
      }
      expected.push_back(Type::from(sum));
    }
  }
  const DeviceArray<typename Type::Bits> y_there(accelerator, y), first(accelerator, bias[0]),
      second(accelerator, bias[1]);
  const DeviceArray<uint32_t> order_there(accelerator, order);
  DeviceArray<typename Type::Bits> out(accelerator, expected.size());
  out.poison();
  const std::initializer_list<uint64_t> rows_here{mine.count, shape.hidden};
  CombineInput input{.y = y_there.view(Type::kType, {received.rows, shape.hidden})};
  if (biases > 0) input.biases[0] = first.view(Type::kType, rows_here);
  if (biases > 1) input.biases[1] = second.view(Type::kType, rows_here);
  if (in_another_order) input.rank_order = order_there.view({mine.count, shape.ranks});
  exchange.combine(input, *received.route, {.x = out.view(Type::kType, rows_here)});
  exchange.wait();
  EXPECT_EQ(difference("out", out.read(), expected), "");
}

TEST_P(RowFormats, SumsAreRoundedOnceWhateverTheType) {
  const ExchangeCase exchange_case{.shape = {.ranks = 4, .experts = 8, .hidden = 136, .topk = 4},
                                   .tokens = {20, 7, 0, 33},
                                   .picking = {.none = 0.3}};
  const auto all = worlds(4);
  for (uint32_t biases = 0; biases <= 2; ++biases)
    expect_none_failed(run_ranks(all, [&](World& world) {
      for (const bool in_another_order : {false, true}) {
        check_sums<Bf16>(world, exchange_case, biases, in_another_order);
        check_sums<Fp16>(world, exchange_case, biases, in_another_order);
        check_sums<Fp32>(world, exchange_case, biases, in_another_order);
      }
    }));
}

/// Not the object's default, and different on each rank.
TEST_P(RowFormats, ACallMayNameItsMultiprocessors) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU run one grid";
  const ExchangeCase exchange_case{.shape = {}, .tokens = {20, 7, 0, 33}};
  const std::vector<Tokens> all = exchange_case.draw();
  const auto ranks = worlds(4);
  expect_none_failed(run_ranks(ranks, [&](World& world) {
    ExpertParallelOptions options = exchange_case.options();
    options.sms_max = 4;
    ExpertParallel exchange(world, options);
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    for (uint32_t sms = 0; sms <= 4; ++sms) {
      DispatchInput input = tokens.input();
      input.sms = (sms + world.rank()) % 5;
      EXPECT_EQ(difference(exchange, exchange.dispatch(input),
                           expected_on(exchange_case.shape, all, world.rank())),
                "");
    }
    DispatchInput input = tokens.input();
    input.sms = 5;
    EXPECT_THROW(exchange.dispatch(input), InvalidArgument);
  }));
}

/// Rank 2 of four sends other rows: all ranks raise the same error, and the next call is right.
TEST_P(RowFormats, RowsThatDifferAreNamedOnAllRanks) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one shape";
  const ExchangeCase exchange_case{.shape = {.hidden = 128}, .tokens = {3, 3, 3, 3}};
  const std::vector<Tokens> all = exchange_case.draw();
  struct Sent {
    RowFormat format;
    CastToFp8 cast;
  };
  struct Difference {
    std::function<void(Sent&)> of_all, of_rank_2;
    std::string argument, expected, seen;
  };
  using Scales = CastToFp8::Scales;
  const auto nothing = [](Sent&) {};
  const auto cast = [](Scales scales, uint32_t channels) {
    return [=](Sent& sent) { sent.cast = {.scales = scales, .channels = channels}; };
  };
  const auto scales_of = [](uint32_t words, ScaleOrder order, DataType type) {
    return [=](Sent& sent) {
      sent.format.scale_words = words;
      sent.format.scale_order = order;
      sent.format.scale_type = type;
    };
  };
  constexpr auto kRows = ScaleOrder::rows, kColumns = ScaleOrder::columns;
  const std::vector<Difference> differences{
      {nothing, [](Sent& sent) { sent.format.type = DataType::float32; }, "x",
       "rows of 256 bytes of bf16", "rows of 512 bytes of fp32"},
      {nothing, [](Sent& sent) { sent.format.type = DataType::float16; }, "x",
       "rows of 256 bytes of bf16", "rows of 256 bytes of fp16"},
      {nothing, scales_of(2, kRows, DataType::float32), "scales", "0 words of words scales by rows",
       "2 words of fp32 scales by rows"},
      {scales_of(2, kRows, DataType::float32), scales_of(2, kColumns, DataType::float32), "scales",
       "2 words of fp32 scales by rows", "2 words of fp32 scales by columns"},
      {scales_of(2, kRows, DataType::float32), scales_of(2, kRows, DataType::int32), "scales",
       "2 words of fp32 scales by rows", "2 words of int32 scales by rows"},
      {nothing, cast(Scales::fp32, 128), "x", "rows of 256 bytes of bf16",
       "rows of 128 bytes of fp8_e4m3"},
      // The same number of words with another meaning.
      {cast(Scales::fp32, 128), cast(Scales::packed, 32), "scales",
       "1 words of fp32 scales by rows", "1 words of int32 scales by rows"},
      {cast(Scales::packed, 128), cast(Scales::packed, 64), "scales",
       "1 words of int32 scales by rows, packed exponents of 1 groups of channels",
       "1 words of int32 scales by rows, packed exponents of 2 groups of channels"}};
  for (const bool by_expert : {false, true}) {
    const auto ranks = worlds(4);
    std::vector<std::vector<InvalidArgument>> seen(4);
    expect_none_failed(run_ranks(ranks, [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      const DeviceArray<uint32_t> memory(accelerator_of(world), 3 * 128);
      for (const Difference& difference_of : differences) {
        DispatchInput input = tokens.input();
        Sent sent;
        difference_of.of_all(sent);
        if (world.rank() == 2) difference_of.of_rank_2(sent);
        if (by_expert && sent.format.scale_order != kRows) sent.format.scale_words = 3;
        if (by_expert) sent.format.scale_order = kRows;
        give_rows(input, sent.format, tokens.count(), exchange_case.shape.hidden, memory.data(),
                  memory.data());
        input.cast = sent.cast;
        try {
          if (by_expert)
            exchange.dispatch_by_expert(input, {});
          else
            exchange.dispatch(input);
        } catch (const InvalidArgument& error) {
          seen[world.rank()].push_back(error);
        }
        // The call had no effect, and the next one is right.
        EXPECT_EQ(difference(exchange, exchange.dispatch(tokens.input()),
                             expected_on(exchange_case.shape, all, world.rank())),
                  "");
      }
    }));
    for (const auto& of_rank : seen) {
      ASSERT_EQ(of_rank.size(), differences.size());
      for (size_t i = 0; i < differences.size(); ++i) {
        EXPECT_EQ(of_rank[i].rank, 2u);
        EXPECT_EQ(of_rank[i].argument, differences[i].argument);
        EXPECT_EQ(of_rank[i].expected, differences[i].expected + " as on rank 0");
        if (!by_expert) {
          EXPECT_EQ(of_rank[i].seen, differences[i].seen);
        }
      }
    }
  }
}

/// If no host waits for counts, or none are exchanged, the object fails; all ranks name the same
/// rank.
TEST_P(RowFormats, RowsThatDifferWhereNobodyWaitsAreNamedOnAllRanks) {
  if (GetParam() == "cuda") GTEST_SKIP() << "ranks that share a GPU launch one shape";
  const ExchangeCase exchange_case{.shape = {}, .tokens = {3, 3, 3, 3}};
  const std::vector<Tokens> all = exchange_case.draw();
  for (const bool on_a_known_route : {false, true}) {
    const auto outcomes = run_ranks(worlds(4), [&](World& world) {
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
      DispatchInput input = tokens.input();
      if (on_a_known_route) {
        const Received received = exchange.dispatch(input);
        DispatchInput again{.x = input.x};
        if (world.rank() == 0) again.x.type = DataType::float16;
        exchange.dispatch(again, *received.route);
      } else {
        input.received_tokens_max = 100;
        if (world.rank() == 0) input.x.type = DataType::float16;
        exchange.dispatch(input);
      }
      exchange.wait();
    });
    for (const auto& outcome : outcomes) {
      const auto error = error_of<InvalidArgument>(outcome);
      EXPECT_EQ(error.argument, "x");
      EXPECT_EQ(error.expected, "rows of 128 bytes of fp16 as on rank 0");
      EXPECT_EQ(error.seen, "rows of 128 bytes of bf16");
      if (!on_a_known_route) {
        EXPECT_EQ(error.rank, 1u);
      }
    }
  }
}

INSTANTIATE_ON_DEVICES(RowFormats);

}  // namespace
}  // namespace tokenyard::test
