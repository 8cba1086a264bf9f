// A sequence has bitwise equal logits alone and together with others, for any number of blocks and,
// if their terms are those of a single rank, of ranks: given the same tokens at each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "decoder/decoder_shapes.hpp"
#include "decoder/plain_decoder.hpp"
#include "decoder/tasks/slices.hpp"
#include "megakernel/devices.hpp"

namespace tokenyard::megakernel {
namespace {

using Prompts = std::vector<std::vector<uint32_t>>;

struct Spread {
  uint32_t ranks = 1, blocks = 4, ring_units = 0;
  uint32_t hosts = 1;  ///< on which the ranks are, equal parts in order
};

WorldOptions options_of(const Spread& spread) {
  // Between hosts cards are threads, too, which a loaded machine keeps waiting.
  return {.timeout = std::chrono::seconds(spread.hosts > 1 ? 120 : 20),
          .arena_bytes = size_t{16} << 20,
          .hosts = spread.hosts};
}

/// Returns [sequences][steps] logits of the whole vocabulary; all tokens come from the prompts.
std::vector<std::vector<Vector>> logits_of(const std::string& device, const Model& model,
                                           const Prompts& prompts, const Spread& spread) {
  const size_t steps = prompts[0].size() - 1, vocabulary = model.shape.vocabulary;
  const size_t mine = vocabulary / spread.ranks;
  std::vector<std::vector<Vector>> all(prompts.size(),
                                       std::vector<Vector>(steps, Vector(vocabulary)));
  run_threads(device, spread.ranks, options_of(spread), [&](World& world) {
    const Graph::Place place{.rank = world.rank(), .ranks = spread.ranks};
    TensorMemory memory(world);
    const DenseDecoder decoder(memory, model.shape, model.placed(memory, place),
                               {.blocks = spread.blocks, .prompts = prompts, .place = place});
    Megakernel kernel(world, decoder.graph(),
                      {.workers = spread.blocks,
                       .unit_bytes = decoder.unit_bytes(),
                       .ring_units = spread.ring_units});
    for (size_t step = 0; step < steps; ++step) {
      EXPECT_EQ(kernel.run(1), 1u) << "of rank " << place.rank << " in step " << step;
      for (size_t s = 0; s < prompts.size(); ++s)
        memory.read({all[s][step].data() + place.rank * mine, {mine}},
                    {decoder.logits + s * mine, {mine}});
    }
    world.barrier("all have their logits");
  });
  return all;
}

/// Returns [ranks][sequences][positions] the chosen tokens until all sequences have ended, which
/// short caches ensure.
std::vector<Prompts> tokens_of(const std::string& device, const Model& model,
                               const Prompts& prompts, const Spread& spread,
                               const std::vector<uint32_t>& stops) {
  DecoderShape shape = model.shape;
  shape.positions_max = 12;
  std::vector<Prompts> all(spread.ranks);
  run_threads(device, spread.ranks, options_of(spread), [&](World& world) {
    const Graph::Place place{.rank = world.rank(), .ranks = spread.ranks};
    TensorMemory memory(world);
    const DenseDecoder decoder(
        memory, shape, model.placed(memory, place),
        {.blocks = spread.blocks, .prompts = prompts, .stop_tokens = stops, .place = place});
    Megakernel kernel(world, decoder.graph(),
                      {.workers = spread.blocks, .unit_bytes = decoder.unit_bytes()});
    kernel.run(0);
    std::vector<uint32_t> tokens(shape.positions_max + 1);
    for (size_t s = 0; s < prompts.size(); ++s) {
      memory.read(TensorView::of(std::span(tokens)),
                  {decoder.tokens + s * tokens.size(), {tokens.size()}});
      all[place.rank].push_back(tokens);
    }
    world.barrier("all have their tokens");
  });
  return all;
}

Prompts prompts_of(uint32_t sequences, uint32_t steps, uint32_t vocabulary) {
  Prompts prompts(sequences, std::vector<uint32_t>(steps + 1));
  for (uint32_t s = 0; s < sequences; ++s)
    for (uint32_t i = 0; i <= steps; ++i) prompts[s][i] = (i * 7 + 3 + 11 * s) % vocabulary;
  return prompts;
}

constexpr DecoderShape kSmall = small_shape(64), kGpus = gpus_shape(64);

class SameBits : public OnDevices {};
INSTANTIATE_ON_DEVICES(SameBits);

void expect_same_bits(const std::vector<Vector>& found, const std::vector<Vector>& expected,
                      const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t step = 0; step < found.size(); ++step)
    for (size_t token = 0; token < found[step].size(); ++token)
      ASSERT_EQ(found[step][token], expected[step][token])
          << what << ": token " << token << " in step " << step;
}

/// Each sequence has its own tokens, so that data of another one would be noticed.
TEST_P(SameBits, OfASequenceBesideOthers) {
  const Model model(kSmall);
  const Prompts prompts = prompts_of(8, 6, kSmall.vocabulary);
  std::vector<std::vector<Vector>> alone;
  for (const std::vector<uint32_t>& prompt : prompts)
    alone.push_back(logits_of(GetParam(), model, {prompt}, {.blocks = 4})[0]);
  EXPECT_NE(alone[0], alone[1]);
  for (const uint32_t sequences : {2, 4, 8}) {
    const Prompts some(prompts.begin(), prompts.begin() + sequences);
    const auto found = logits_of(GetParam(), model, some, {.blocks = 4 * sequences});
    for (uint32_t s = 0; s < sequences; ++s)
      ASSERT_NO_FATAL_FAILURE(
          expect_same_bits(found[s], alone[s], fmt::format("sequence {} of {}", s, sequences)));
  }
}

/// More positions than sections, divided among blocks in every way.
TEST_P(SameBits, WhateverTheNumberOfBlocks) {
  DecoderShape shape = kSmall;
  shape.kv_heads = 1;
  shape.query_heads = 2;
  shape.layers = 1;
  const Prompts prompts = prompts_of(2, 36, shape.vocabulary);
  for (const Model& model :
       {Model(shape), Model(shape, {.biases = true, .norms = true, .windows = {20}})}) {
    const auto alone = logits_of(GetParam(), model, {prompts[0]}, {.blocks = 1})[0];
    for (const uint32_t blocks : {2, 4, 8})
      expect_same_bits(logits_of(GetParam(), model, {prompts[0]}, {.blocks = blocks})[0], alone,
                       fmt::format("{} blocks", blocks));
    for (const uint32_t blocks : {2, 8})
      expect_same_bits(logits_of(GetParam(), model, prompts, {.blocks = blocks})[0], alone,
                       fmt::format("{} blocks, 2 sequences", blocks));
  }
}

/// One part of the feed-forward per rank for up to four ranks; a single rank has four parts.
TEST_P(SameBits, OfRanksThatShareAModel) {
  DecoderShape shape = kSmall;
  shape.layers = 1;
  shape.inner = 4 * kVectorMax;
  const Model model(shape);
  const Prompts prompts = prompts_of(8, 3, shape.vocabulary);
  const auto alone = logits_of(GetParam(), model, prompts, {.blocks = 32});
  for (const auto& [ranks, sequences] : {std::pair{2u, 2u}, {2u, 8u}, {4u, 1u}, {4u, 4u}}) {
    if (!devices_apart(ranks)) continue;
    const Prompts some(prompts.begin(), prompts.begin() + sequences);
    const uint32_t blocks = std::max(2u, sequences) * shape.kv_heads / ranks;
    const auto found = logits_of(GetParam(), model, some, {.ranks = ranks, .blocks = blocks});
    for (uint32_t s = 0; s < sequences; ++s)
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(
          found[s], alone[s], fmt::format("sequence {} of {} on {} ranks", s, sequences, ranks)));
  }
}

/// The same for ranks that cannot add to each other's sums, one or two per host.
TEST_P(SameBits, OfRanksOnSeveralHosts) {
  DecoderShape shape = kSmall;
  shape.layers = 1;
  shape.inner = 4 * kVectorMax;
  const Model model(shape, {.biases = true, .norms = true, .windows = {2}});
  const Prompts prompts = prompts_of(8, 3, shape.vocabulary);
  const auto alone = logits_of(GetParam(), model, prompts, {.blocks = 32});
  struct Hosts {
    uint32_t hosts, ranks, sequences;
  };
  for (const auto& [hosts, ranks, sequences] :
       {Hosts{2, 2, 1}, {2, 2, 8}, {2, 4, 2}, {4, 4, 1}, {2, 4, 4}}) {
    // A GPU's rank is alone on its host, since TCP does not reach GPUs' memory.
    if (!on_host() && (hosts != ranks || !devices_apart(ranks))) continue;
    const Prompts some(prompts.begin(), prompts.begin() + sequences);
    const uint32_t blocks = std::max(2u, sequences) * shape.kv_heads / ranks;
    const auto found =
        logits_of(GetParam(), model, some, {.ranks = ranks, .blocks = blocks, .hosts = hosts});
    for (uint32_t s = 0; s < sequences; ++s)
      ASSERT_NO_FATAL_FAILURE(expect_same_bits(
          found[s], alone[s],
          fmt::format("sequence {} of {} on {} ranks of {} hosts", s, sequences, ranks, hosts)));
  }
}

TEST_P(SameBits, OfThreeHosts) {
  if (!devices_apart(3)) GTEST_SKIP() << "ranks need devices of their own";
  DecoderShape shape = kSmall;
  shape.vocabulary = 99;
  shape.kv_heads = 3;
  shape.query_heads = 6;
  shape.inner = 3 * kVectorMax;
  const Model model(shape);
  const Prompts prompts = prompts_of(2, 3, shape.vocabulary);
  const auto alone = logits_of(GetParam(), model, prompts, {.blocks = 6});
  const auto found = logits_of(GetParam(), model, prompts, {.ranks = 3, .blocks = 2, .hosts = 3});
  for (uint32_t s = 0; s < prompts.size(); ++s)
    ASSERT_NO_FATAL_FAILURE(
        expect_same_bits(found[s], alone[s], fmt::format("sequence {} on 3 hosts", s)));
}

/// Chosen tokens, on every rank: greedy, with a stop token, from prompts of different lengths.
TEST_P(SameBits, OfTokensThatRanksDecide) {
  const Model model(kSmall);
  const Prompts prompts = {{3, 4, 5}, {8}, {77, 1}, {50}};
  if (!devices_apart(2)) GTEST_SKIP() << "ranks need devices of their own";
  const auto alone = tokens_of(GetParam(), model, prompts, {.blocks = 16}, {});
  // A token of another sequence is one of several stop tokens.
  const std::vector<std::vector<uint32_t>> choices{
      {}, {alone[0][1][6]}, {alone[0][0][5], alone[0][1][6]}};
  for (const std::vector<uint32_t>& stops_at : choices) {
    const auto one = tokens_of(GetParam(), model, prompts, {.blocks = 16}, stops_at);
    const auto two = tokens_of(GetParam(), model, prompts, {.ranks = 2, .blocks = 8}, stops_at);
    EXPECT_EQ(two[0], one[0]);
    EXPECT_EQ(two[1], one[0]);
    const auto hosts =
        tokens_of(GetParam(), model, prompts, {.ranks = 2, .blocks = 8, .hosts = 2}, stops_at);
    EXPECT_EQ(hosts, two);
    EXPECT_EQ(one[0] == alone[0], stops_at.empty());
  }
}

/// As on a GPU, with all its blocks.
TEST_P(SameBits, OfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  const Model model(shape);
  const Prompts prompts = prompts_of(8, 40, shape.vocabulary);
  std::vector<std::vector<Vector>> alone;
  for (const std::vector<uint32_t>& prompt : prompts)
    alone.push_back(logits_of(GetParam(), model, {prompt}, {.blocks = 128})[0]);
  for (const uint32_t sequences : {2, 4, 8}) {
    const Prompts some(prompts.begin(), prompts.begin() + sequences);
    const auto found = logits_of(GetParam(), model, some, {.blocks = 128});
    for (uint32_t s = 0; s < sequences; ++s)
      ASSERT_NO_FATAL_FAILURE(
          expect_same_bits(found[s], alone[s], fmt::format("sequence {} of {}", s, sequences)));
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
