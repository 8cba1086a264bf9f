/// BF16 rows cast to FP8 in a dispatch, compared bit for bit with the documented definition.
#include <bit>
#include <cmath>

#include "device/numbers.hpp"
#include "expert_parallel/ranks.hpp"
#include "expert_parallel/throughput/row_bytes.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {
namespace {

class Cast : public OnDevice {};

/// A token in FP8, with its scales as words.
struct CastRow {
  std::vector<uint8_t> x;
  std::vector<uint32_t> scales;
};

CastRow cast(const uint16_t* x, uint32_t hidden, const CastToFp8& how) {
  CastRow row;
  const bool packed = how.scales == CastToFp8::Scales::packed;
  const uint32_t groups = hidden / how.channels;
  row.scales.resize(packed ? (groups + 3) / 4 : groups);
  for (uint32_t group = 0; group < groups; ++group) {
    float largest = 1e-4f;
    for (uint32_t i = 0; i < how.channels; ++i)
      largest = std::fmax(largest, std::fabs(from_bf16(x[group * how.channels + i])));
    float scale = largest / 448, up = 448 / largest;
    if (packed) {
      const ScaleE8M0 exponent = to_scale_e8m0(scale);
      up = 1 / to_float(exponent);
      row.scales[group / 4] |= uint32_t{exponent.bits} << 8 * (group % 4);
    } else {
      row.scales[group] = std::bit_cast<uint32_t>(scale);
    }
    for (uint32_t i = 0; i < how.channels; ++i)
      row.x.push_back(to_float8_e4m3(from_bf16(x[group * how.channels + i]) * up).bits);
  }
  return row;
}

TEST_P(Cast, RowsAndScalesAreThoseOfTheDefinition) {
  struct Try {
    uint32_t hidden;
    CastToFp8 how;
    ScaleOrder order;
  };
  using Scales = CastToFp8::Scales;
  for (const Try& t : {Try{1024, {Scales::fp32, 128}, ScaleOrder::rows},
                       Try{1280, {Scales::packed, 128}, ScaleOrder::columns},
                       Try{7168, {Scales::packed, 128}, ScaleOrder::rows},
                       Try{80, {Scales::fp32, 16}, ScaleOrder::columns},
                       Try{1536, {Scales::packed, 512}, ScaleOrder::rows}}) {
    const ExchangeCase exchange_case{
        .shape = {.ranks = 3, .experts = 6, .hidden = t.hidden, .topk = 2},
        .tokens = {7, 0, 12},
        .picking = {.none = 0.2}};
    std::vector<Tokens> all = exchange_case.draw();
    for (Tokens& tokens : all)
      for (size_t i = 0; i < tokens.x.size(); i += 7) tokens.x[i] = to_bf16(0.001f * (i % 11));
    const auto worlds_of = worlds(3);
    expect_none_failed(run_ranks(worlds_of, [&](World& world) {
      Accelerator& accelerator = accelerator_of(world);
      ExpertParallel exchange(world, exchange_case.options());
      const TokensOnDevice tokens(accelerator, all[world.rank()], true);
      DispatchInput input = tokens.input();
      input.cast = t.how;
      input.scale_order = t.order;
      const Received first = exchange.dispatch(input);
      input.topk_idx = {};
      input.topk_weights = {};
      for (const Received& received : {first, exchange.dispatch(input, *first.route)}) {
        exchange.wait();
        EXPECT_EQ(received.format.type, DataType::float8_e4m3fn);
        const Expected expected = expected_on(exchange_case.shape, all, world.rank());
        const bool by_rows = t.order == ScaleOrder::rows;
        const uint32_t words = received.format.scale_words;
        const uint64_t stride = scale_stride(received.scales, t.order);
        const auto x =
            read_back(accelerator, received.x.as<uint8_t>(), size_t{received.rows} * t.hidden);
        const auto scales = read_back(accelerator, received.scales.as<uint32_t>(),
                                      size_t{by_rows ? received.rows : words} * stride);
        for (uint32_t row = 0; row < received.rows; ++row) {
          const auto [source, token] = expected.rows[row];
          const CastRow want = cast(&all[source].x[size_t{token} * t.hidden], t.hidden, t.how);
          ASSERT_EQ(words, want.scales.size());
          for (uint32_t word = 0; word < words; ++word)
            ASSERT_EQ(scales[by_rows ? row * stride + word : word * stride + row],
                      want.scales[word]);
          for (uint32_t i = 0; i < t.hidden; ++i)
            ASSERT_EQ(x[size_t{row} * t.hidden + i], want.x[i]) << "channel " << i;
        }
      }
    }));
  }
}

TEST_P(Cast, WhatCannotBeCastIsNamed) {
  const ExchangeCase alone{.shape = {.ranks = 1, .experts = 4, .hidden = 48, .topk = 2},
                           .tokens = {4}};
  const std::vector<Tokens> all = alone.draw();
  const auto worlds_of = worlds(1);
  expect_none_failed(run_ranks(worlds_of, [&](World& world) {
    ExpertParallel exchange(world, alone.options());
    const TokensOnDevice tokens(accelerator_of(world), all[0], true);
    const auto argument_of = [&](auto change) {
      DispatchInput input = tokens.input();
      input.cast = {.scales = CastToFp8::Scales::fp32, .channels = 16};
      change(input);
      try {
        exchange.dispatch(input);
      } catch (const InvalidArgument& error) {
        return error.argument;
      }
      return std::string("none");
    };
    EXPECT_EQ(argument_of([](DispatchInput& input) { input.x.type = DataType::float16; }),
              "as_fp8");
    EXPECT_EQ(argument_of([](DispatchInput& input) { input.cast.channels = 32; }),
              "scale_channels");
    EXPECT_EQ(argument_of([](DispatchInput& input) { input.cast.channels = 24; }),
              "scale_channels");
    EXPECT_EQ(argument_of([](DispatchInput&) {}), "none");
    exchange.wait();
  }));
}

INSTANTIATE_ON_DEVICES(Cast);

}  // namespace
}  // namespace tokenyard::test
