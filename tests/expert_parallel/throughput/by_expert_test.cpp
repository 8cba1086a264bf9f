/// Rows grouped by expert, and combines of results by expert.
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

struct Choices {
  uint32_t topk = 4, experts_a_rank = 5;
  uint32_t more = 0;  ///< further experts, fewer than ranks, so that the ranks do not divide them
};

class ExpertMajor : public OnDevice {
 protected:
  static ExchangeCase case_of(uint32_t ranks, const Choices& choices = {}) {
    std::vector<uint32_t> tokens;
    for (uint32_t rank = 0; rank < ranks; ++rank) tokens.push_back(rank == 2 ? 0 : 23 + 9 * rank);
    return {.shape = {.ranks = ranks,
                      .experts = choices.experts_a_rank * ranks + std::min(choices.more, ranks - 1),
                      .hidden = 144,
                      .topk = choices.topk},
            .tokens = tokens,
            .picking = {.none = 0.25}};
  }
  template <class Group>
  void expect_rows_by_expert(Group group, const Choices& choices = {}, bool cleared = true);
  void expect_results_home(const Choices& choices);
};

/// Expected order of a rank's received rows: per expert its rows, then padding.
struct Grouped {
  std::vector<int32_t> offsets{0}, row_of, slots;
  std::vector<float> weights;
};

Grouped grouped(const Shape& shape, const Expected& received, uint32_t alignment) {
  Grouped expected;
  expected.slots.assign(received.ids.size(), -1);
  for (uint32_t expert = 0; expert < received.tokens_per_expert.size(); ++expert) {
    for (size_t choice = 0; choice < received.ids.size(); ++choice) {
      if (received.ids[choice] != static_cast<int32_t>(expert)) continue;
      expected.slots[choice] = static_cast<int32_t>(expected.row_of.size());
      expected.row_of.push_back(static_cast<int32_t>(choice / shape.topk));
      expected.weights.push_back(received.weights[choice]);
    }
    while (expected.row_of.size() % alignment != 0) {
      expected.row_of.push_back(-1);
      expected.weights.push_back(0);
    }
    expected.offsets.push_back(static_cast<int32_t>(expected.row_of.size()));
  }
  return expected;
}

/// Compares rows and scales of every place. Padding must be zeros if `cleared`; otherwise it may
/// hold anything.
std::string difference_of_rows(Accelerator& accelerator, const ExpertRows& rows,
                               const Grouped& expected, const Expected& received,
                               uint32_t row_words, bool cleared) {
  const uint32_t scale_words = rows.format.scale_words;
  const bool by_rows = rows.format.scale_order == ScaleOrder::rows;
  const uint64_t stride = scale_stride(rows.scales, rows.format.scale_order);
  const auto x = read_back(accelerator, rows.x.as<uint32_t>(), size_t{rows.rows} * row_words);
  const auto scales = read_back(accelerator, rows.scales.as<uint32_t>(),
                                size_t{by_rows ? rows.rows : scale_words} * stride);
  for (uint32_t place = 0; place < expected.row_of.size(); ++place) {
    const int32_t row = expected.row_of[place];
    const Row from = row < 0 ? Row{} : received.rows[row];
    for (uint32_t word = 0; word < row_words && (row >= 0 || cleared); ++word)
      if (x[place * row_words + word] != (row < 0 ? 0 : row_word(0, from.source, from.token, word)))
        return fmt::format("word {} of place {} is wrong", word, place);
    for (uint32_t word = 0; word < scale_words; ++word) {
      const size_t at = by_rows ? place * stride + word : word * stride + place;
      if (scales[at] != (row < 0 ? 0 : scale_word(0, from.source, from.token, word)))
        return fmt::format("scale {} of place {} is wrong", word, place);
    }
  }
  return "";
}

/// Checks the result of `group` on several numbers of ranks.
template <class Group>
void ExpertMajor::expect_rows_by_expert(Group group, const Choices& choices, bool cleared) {
  for (const uint32_t ranks : {1, 2, 4}) {
    const ExchangeCase exchange_case = case_of(ranks, choices);
    const std::vector<Tokens> all = exchange_case.draw();
    const auto worlds_of = worlds(ranks);
    expect_none_failed(run_ranks(worlds_of, [&](World& world) {
      Accelerator& accelerator = accelerator_of(world);
      const Expected expected = expected_on(exchange_case.shape, all, world.rank());
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator, all[world.rank()], true);
      constexpr uint32_t kRowWords = 36, kScaleWords = 3;
      const RowBytes bytes =
          row_bytes_of(0, world.rank(), all[world.rank()].count, kRowWords, kScaleWords);
      const DeviceArray<uint32_t> x(accelerator, bytes.x), scales(accelerator, bytes.scales);
      DispatchInput input = tokens.input();
      give_rows(input, {.type = DataType::float8_e4m3fn, .scale_words = kScaleWords},
                tokens.count(), exchange_case.shape.hidden, x.data(), scales.data());
      for (const uint32_t alignment : {1u, 8u, 128u})
        for (const ScaleOrder order : {ScaleOrder::rows, ScaleOrder::columns}) {
          const Grouped want = grouped(exchange_case.shape, expected, alignment);
          const RowsByExpert got =
              group(exchange, input,
                    {.alignment = alignment, .scale_order = order, .clear_padding = cleared});
          exchange.wait();
          const ExpertRows& rows = got.rows;
          ASSERT_EQ(rows.rows, want.row_of.size());
          ASSERT_EQ(rows.first_rows,
                    std::vector<uint32_t>(want.offsets.begin(), want.offsets.end()));
          EXPECT_EQ(got.received.rows_from, expected.rows_from);
          EXPECT_EQ(read_back(accelerator, rows.offsets.as<int32_t>(), want.offsets.size()),
                    want.offsets);
          EXPECT_EQ(read_back(accelerator, rows.row_of.as<int32_t>(), rows.rows), want.row_of);
          EXPECT_EQ(read_back(accelerator, rows.weights.as<float>(), rows.rows), want.weights);
          EXPECT_EQ(read_back(accelerator, rows.row_of_choice.as<int32_t>(), want.slots.size()),
                    want.slots);
          EXPECT_EQ(difference_of_rows(accelerator, rows, want, expected, kRowWords, cleared), "");
        }
    }));
  }
}

TEST_P(ExpertMajor, EveryExpertHasItsRowsInOrderAndZerosAfterThem) {
  expect_rows_by_expert(
      [](ExpertParallel& exchange, const DispatchInput& input, const GroupByExpertOptions& how) {
        const Received received = exchange.dispatch(input);
        return RowsByExpert{received, exchange.group_by_expert(received, how)};
      });
}

TEST_P(ExpertMajor, PaddingThatIsNotClearedLeavesTheRestAsItIs) {
  const auto after = [](ExpertParallel& exchange, const DispatchInput& input,
                        const GroupByExpertOptions& how) {
    const Received received = exchange.dispatch(input);
    return RowsByExpert{received, exchange.group_by_expert(received, how)};
  };
  const auto at_once = [](ExpertParallel& exchange, const DispatchInput& input,
                          const GroupByExpertOptions& how) {
    return exchange.dispatch_by_expert(input, how);
  };
  expect_rows_by_expert(after, {}, false);
  expect_rows_by_expert(at_once, {}, false);
}

// A block counts the choices before its rows or those from there on, whichever are fewer, four at a
// time. With three choices per row, its rows begin anywhere within a group of four.
TEST_P(ExpertMajor, EveryBlockOfAnyNumberFindsItsPlaces) {
  for (const uint32_t sms : {1u, 3u, 8u})
    expect_rows_by_expert(
        [&](ExpertParallel& exchange, const DispatchInput& input, GroupByExpertOptions how) {
          const Received received = exchange.dispatch(input);
          how.sms = sms;
          return RowsByExpert{received, exchange.group_by_expert(received, how)};
        },
        {.topk = 3});
}

TEST_P(ExpertMajor, RowsThatAreGroupedAsTheyComeLieAsThoseGroupedAfter) {
  expect_rows_by_expert(
      [](ExpertParallel& exchange, const DispatchInput& input, const GroupByExpertOptions& how) {
        return exchange.dispatch_by_expert(input, how);
      });
}

TEST_P(ExpertMajor, MorePicksThanAWarpHasLanesAndUnequalRanksAreGroupedAlike) {
  const auto after = [](ExpertParallel& exchange, const DispatchInput& input,
                        const GroupByExpertOptions& how) {
    const Received received = exchange.dispatch(input);
    return RowsByExpert{received, exchange.group_by_expert(received, how)};
  };
  const auto at_once = [](ExpertParallel& exchange, const DispatchInput& input,
                          const GroupByExpertOptions& how) {
    return exchange.dispatch_by_expert(input, how);
  };
  for (const Choices& choices :
       {Choices{.topk = 4, .more = 3}, Choices{.topk = 33, .experts_a_rank = 40},
        Choices{.topk = 100, .experts_a_rank = 101, .more = 1}}) {
    expect_rows_by_expert(after, choices);
    expect_rows_by_expert(at_once, choices);
  }
}

/// A rank without enough places raises an error; the others' rows arrive, and the next call works.
TEST_P(ExpertMajor, TooManyRowsForThePlacesGivenAreThisRanksTroubleOnly) {
  const ExchangeCase exchange_case = case_of(2);
  const std::vector<Tokens> all = exchange_case.draw();
  const auto worlds_of = worlds(2);
  expect_none_failed(run_ranks(worlds_of, [&](World& world) {
    const Expected expected = expected_on(exchange_case.shape, all, world.rank());
    const Grouped want = grouped(exchange_case.shape, expected, 1);
    ExpertParallel exchange(world, exchange_case.options());
    const TokensOnDevice tokens(accelerator_of(world), all[world.rank()], true);
    for (uint32_t cramped = 0; cramped < 3; ++cramped) {
      std::string argument = "none";
      try {
        exchange.dispatch_by_expert(tokens.input(),
                                    {.rows_max = cramped == world.rank() ? 1 : 4096u});
      } catch (const InvalidArgument& error) {
        argument = error.argument;
      }
      EXPECT_EQ(argument, cramped == world.rank() ? "rows_max" : "none");
      exchange.wait();
    }
    const RowsByExpert got = exchange.dispatch_by_expert(tokens.input(), {});
    exchange.wait();
    EXPECT_EQ(
        read_back(accelerator_of(world), got.rows.row_of_choice.as<int32_t>(), want.slots.size()),
        want.slots);
  }));
}

/// Returns an expert's result for a token, in BF16 precision.
float result_of(int64_t expert, Row row, uint32_t column) {
  return from_bf16(expert_value(static_cast<uint32_t>(expert), row, column));
}

/// Returns sums by rank, then choice: in fp32, rounded on the experts' rank and again on the
/// owner's.
std::vector<uint16_t> expected_home(const Shape& shape, const Tokens& mine, uint32_t rank,
                                    bool weighted) {
  std::vector<uint16_t> out;
  for (uint32_t token = 0; token < mine.count; ++token)
    for (uint32_t column = 0; column < shape.hidden; ++column) {
      float home = 0;
      for (uint32_t there = 0; there < shape.ranks; ++there) {
        if (!goes_to(shape, mine, token, there)) continue;
        float sum = 0;
        for (uint32_t choice = 0; choice < shape.topk; ++choice) {
          const size_t at = size_t{token} * shape.topk + choice;
          const int64_t id = mine.ids[at];
          if (!shape.holds(there, id)) continue;
          // These products are exact in fp32, so fused and separate rounding agree.
          const float value = result_of(id, {rank, token}, column);
          sum += weighted ? value * mine.weights[at] : value;
        }
        home += from_bf16(to_bf16(sum));
      }
      out.push_back(to_bf16(home));
    }
  return out;
}

void ExpertMajor::expect_results_home(const Choices& choices) {
  const ExchangeCase exchange_case = case_of(4, choices);
  const Shape& shape = exchange_case.shape;
  std::vector<Tokens> all = exchange_case.draw();
  // Powers of two: products with them are exact.
  for (Tokens& tokens : all)
    for (float& weight : tokens.weights) weight = weight > 0.7f ? 0.5f : 0.25f;
  const auto worlds_of = worlds(4);
  expect_none_failed(run_ranks(worlds_of, [&](World& world) {
    Accelerator& accelerator = accelerator_of(world);
    const Tokens& mine = all[world.rank()];
    const Expected expected = expected_on(shape, all, world.rank());
    ExpertParallel exchange(world, exchange_case.options());
    const TokensOnDevice tokens(accelerator, mine, true);
    const Received received = exchange.dispatch(tokens.input());
    ExpertRows rows = exchange.group_by_expert(received, {.alignment = 16});
    const Grouped want = grouped(shape, expected, 16);
    std::vector<uint16_t> y(size_t{rows.rows} * shape.hidden, 0x7fff);  // NaN in the padding.
    for (uint32_t local = 0; local < shape.local_experts(world.rank()); ++local)
      for (int32_t place = want.offsets[local]; place < want.offsets[local + 1]; ++place)
        for (uint32_t column = 0; column < shape.hidden && want.row_of[place] >= 0; ++column)
          y[size_t(place) * shape.hidden + column] = expert_value(
              shape.first_expert(world.rank()) + local, expected.rows[want.row_of[place]], column);
    const DeviceArray<uint16_t> results(accelerator, y);
    DeviceArray<uint16_t> out(accelerator, mine.x.size());
    for (const bool weighted : {false, true}) {
      out.poison();
      exchange.combine({.y = results.bf16_rows(exchange.options().hidden),
                        .by_expert = &rows,
                        .weighted = weighted},
                       *received.route, {.x = out.bf16_rows(exchange.options().hidden)});
      rows.forget_rows();  // A combine reads the places of the rows, not the rows.
      exchange.wait();
      EXPECT_EQ(difference("out", out.read(), expected_home(shape, mine, world.rank(), weighted)),
                "");
    }
  }));
}

TEST_P(ExpertMajor, ResultsOfARowsExpertsAreAddedUpBeforeTheyGoHome) {
  expect_results_home({});
}

TEST_P(ExpertMajor, ResultsOfMorePicksThanAWarpHasLanesAreAddedUpToo) {
  expect_results_home({.topk = 33, .experts_a_rank = 40, .more = 2});
  expect_results_home({.topk = 100, .experts_a_rank = 60, .more = 3});
}

TEST_P(ExpertMajor, WrongArgumentsAreNamed) {
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 16, .topk = 2},
                           .tokens = {4}};
  const std::vector<Tokens> all = alone.draw();
  const auto worlds_of = worlds(1);
  expect_none_failed(run_ranks(worlds_of, [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    const TokensOnDevice tokens(accelerator_of(world), all[0], true);
    const Received received = exchange.dispatch(tokens.input());
    const Received other = exchange.dispatch(tokens.input());
    const auto argument_of = [&](const auto& call) {
      try {
        call();
      } catch (const InvalidArgument& error) {
        return error.argument;
      }
      return std::string("none");
    };
    EXPECT_EQ(argument_of([&] { exchange.group_by_expert(received, {.alignment = 0}); }),
              "alignment");
    EXPECT_EQ(argument_of([&] { exchange.group_by_expert(received, {.rows_max = 1}); }),
              "rows_max");
    EXPECT_EQ(argument_of([&] { exchange.group_by_expert({}, {}); }), "received");
    const ExpertRows rows = exchange.group_by_expert(received, {});
    const DeviceArray<uint16_t> out(accelerator_of(world), 4 * 16);
    EXPECT_EQ(argument_of([&] {
                exchange.combine({.y = rows.x, .by_expert = &rows}, *other.route,
                                 {.x = out.bf16_rows(exchange.options().hidden)});
              }),
              "by_expert");
    EXPECT_EQ(argument_of([&] {
                exchange.combine({.y = received.x, .weighted = true}, *received.route,
                                 {.x = out.bf16_rows(exchange.options().hidden)});
              }),
              "weighted");
    exchange.wait();
  }));
}

INSTANTIATE_ON_DEVICES(ExpertMajor);

}  // namespace
}  // namespace tokenyard::test
