// A dense decoder whose stages hand on words, against the plainest reading of the same model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "megakernel/decoder_shapes.hpp"
#include "megakernel/devices.hpp"
#include "megakernel/plain_decoder.hpp"
#include "megakernel/tasks/slices.hpp"

namespace tokenyard::megakernel {
namespace {

class DenseDecoding : public OnDevices {
 protected:
  /// Logits of every step, all fed the same tokens, against the plain reading's.
  void compare(const DecoderShape& shape, uint32_t blocks, uint32_t steps, float tolerance) const {
    const Model model(shape);
    const auto world =
        alone({.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20});
    TensorMemory memory(*world);
    std::vector<uint32_t> prompt(steps + 1);
    for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = (i * 7 + 3) % shape.vocabulary;
    const DenseDecoder decoder(memory, shape, model.placed(memory),
                               {.blocks = blocks, .prompts = {prompt}});
    Megakernel kernel(*world, decoder.graph(),
                      {.workers = blocks, .unit_bytes = decoder.unit_bytes()});
    Plain plain(model);
    Vector logits(shape.vocabulary);
    for (uint32_t step = 0; step < steps; ++step) {
      ASSERT_EQ(kernel.run(1), 1u);
      memory.read(logits.data(), decoder.logits, logits.size() * sizeof(float));
      const Vector expected = plain.logits(prompt[step]);
      float worst = 0;
      for (size_t i = 0; i < logits.size(); ++i)
        worst = std::max(worst, std::abs(logits[i] - expected[i]));
      EXPECT_LT(worst, tolerance) << "in step " << step;
    }
    uint32_t status = 99;
    memory.read(&status, decoder.status, sizeof(status));
    EXPECT_EQ(status, 0u);
  }
};
INSTANTIATE_ON_DEVICES(DenseDecoding);

constexpr DecoderShape kSmall = small_shape(32), kGpus = gpus_shape(32);

TEST_P(DenseDecoding, FindsTheLogitsOfThePlainModel) {
  compare(kSmall, 4, 10, 2e-2f);
}

TEST_P(DenseDecoding, WithPositionsSplitAmongBlocks) {
  compare(kSmall, 8, 10, 2e-2f);
}

TEST_P(DenseDecoding, OfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  compare(shape, 128, 4, 5e-2f);
}

/// From the middle of a cache that was filled with random numbers, to its end.
void compare_at(const std::string& device, const DecoderShape& shape, uint32_t blocks,
                uint32_t position, float tolerance) {
  const Model model(shape);
  const auto worlds = World::in_process(
      1, device, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20});
  TensorMemory memory(*worlds[0]);
  std::vector<uint32_t> prompt(shape.positions_max + 1);
  for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = (i * 7 + 3) % shape.vocabulary;
  const DenseDecoder decoder(memory, shape, model.placed(memory),
                             {.blocks = blocks, .prompts = {prompt}});
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  const size_t heads = size_t{shape.layers} * shape.kv_heads;
  const size_t row = size_t{position} * shape.head_dim;
  Matrix keys(heads * row), values(keys.size());
  for (uint16_t& key : keys) key = rounded(normal(random));
  for (uint16_t& value : values) value = rounded(normal(random));
  for (size_t head = 0; head < heads; ++head) {
    const size_t to = head * shape.positions_max * shape.head_dim;
    memory.write(decoder.k_cache + to, keys.data() + head * row, row * sizeof(uint16_t));
    memory.write(decoder.v_cache + to, values.data() + head * row, row * sizeof(uint16_t));
  }
  memory.write(decoder.position, &position, sizeof(position));
  memory.write(decoder.token, &prompt[position], sizeof(uint32_t));
  Plain plain(model);
  plain.begin(position, keys, values);
  Megakernel kernel(*worlds[0], decoder.graph(),
                    {.workers = blocks, .unit_bytes = decoder.unit_bytes()});
  Vector logits(shape.vocabulary);
  for (uint32_t at = position; at < shape.positions_max; ++at) {
    ASSERT_EQ(kernel.run(1), 1u);
    memory.read(logits.data(), decoder.logits, logits.size() * sizeof(float));
    const Vector expected = plain.logits(prompt[at]);
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_LT(std::abs(logits[i] - expected[i]), tolerance)
          << "token " << i << " at position " << at;
  }
  uint32_t status = 99;
  memory.read(&status, decoder.status, sizeof(status));
  EXPECT_EQ(status, 2u) << "the cache is full";
}

TEST_P(DenseDecoding, AtTheEndOfALongContext) {
  DecoderShape shape = kSmall;
  shape.kv_heads = 2;
  shape.query_heads = 4;
  shape.positions_max = 4096;
  compare_at(GetParam(), shape, 16, 4094, 2e-2f);
}

TEST_P(DenseDecoding, OfAGpusShapeAtTheEndOfALongContext) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  DecoderShape shape = kGpus;
  shape.positions_max = 4096;
  compare_at(GetParam(), shape, 128, 4090, 5e-2f);
}

/// Logits of each step, of all the vocabulary, by ranks that share the model. Fed the same tokens.
std::vector<Vector> logits_of_ranks(const std::string& device, const Model& model, uint32_t ranks,
                                    uint32_t blocks, uint32_t steps) {
  const DecoderShape& shape = model.shape;
  std::vector<uint32_t> prompt(steps + 1);
  for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = (i * 7 + 3) % shape.vocabulary;
  std::vector<Vector> all(steps, Vector(shape.vocabulary));
  run_threads(device, ranks, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20},
              [&](World& world) {
                const Graph::Place place{.rank = world.rank(), .ranks = ranks};
                TensorMemory memory(world);
                const DenseDecoder decoder(memory, shape, model.placed(memory, place),
                                           {.blocks = blocks, .prompts = {prompt}, .place = place});
                Megakernel kernel(world, decoder.graph(),
                                  {.workers = blocks, .unit_bytes = decoder.unit_bytes()});
                const size_t mine = shape.vocabulary / ranks;
                for (uint32_t step = 0; step < steps; ++step) {
                  EXPECT_EQ(kernel.run(1), 1u) << "of rank " << place.rank << " in step " << step;
                  memory.read(all[step].data() + place.rank * mine, decoder.logits,
                              mine * sizeof(float));
                }
                world.barrier("all have their logits");
              });
  return all;
}

void expect_same_bits(const std::vector<Vector>& one, const std::vector<Vector>& other) {
  for (size_t step = 0; step < one.size(); ++step)
    for (size_t token = 0; token < one[step].size(); ++token)
      ASSERT_EQ(one[step][token], other[step][token]) << "token " << token << " in step " << step;
}

/// Ranks add the same terms to the same sums as one alone, so nothing rounds another way.
TEST_P(DenseDecoding, RanksThatShareAModelFindTheBitsOfOne) {
  DecoderShape shape = kSmall;
  shape.layers = 1;
  shape.inner = 4 * kVectorMax;  // A part of it each, for four ranks.
  const Model model(shape);
  const auto alone = logits_of_ranks(GetParam(), model, 1, 8, 3);
  expect_same_bits(alone, logits_of_ranks(GetParam(), model, 2, 4, 3));
  expect_same_bits(alone, logits_of_ranks(GetParam(), model, 4, 2, 3));
}

TEST_P(DenseDecoding, RanksThatShareAModelFindThePlainLogits) {
  const Model model(kSmall);
  for (const uint32_t ranks : {2, 4}) {
    const auto found = logits_of_ranks(GetParam(), model, ranks, 4, 10);
    Plain plain(model);
    for (uint32_t step = 0; step < found.size(); ++step) {
      const Vector expected = plain.logits((step * 7 + 3) % kSmall.vocabulary);
      for (uint32_t i = 0; i < expected.size(); ++i)
        ASSERT_LT(std::abs(found[step][i] - expected[i]), 2e-2f)
            << "token " << i << " in step " << step << " by " << ranks << " ranks";
    }
  }
}

/// Rows of QKV, of gate/up, of the down projection and of the head are fewer than can be dealt out
/// to all blocks. Those without rows must not look for what is cleared before they have found it.
TEST_P(DenseDecoding, BlocksWithoutRowsOfAStageOnlyCarryTheVectorOn) {
  DecoderShape few_of_qkv = small_shape(64);
  few_of_qkv.vocabulary = 12;
  few_of_qkv.query_heads = few_of_qkv.kv_heads = 4;
  few_of_qkv.inner = 32;
  DecoderShape few_of_down = few_of_qkv;
  few_of_down.hidden = 16;
  for (const DecoderShape& shape : {few_of_qkv, few_of_down}) {
    const Model model(shape);
    for (const uint32_t ranks : {1, 2, 4}) {
      const uint32_t blocks = shape.hidden / 8 * shape.kv_heads / ranks;  // As many as can be.
      const auto found = logits_of_ranks(GetParam(), model, ranks, blocks, 60);
      Plain plain(model);
      for (uint32_t step = 0; step < found.size(); ++step) {
        const Vector expected = plain.logits((step * 7 + 3) % shape.vocabulary);
        for (uint32_t i = 0; i < expected.size(); ++i)
          ASSERT_LT(std::abs(found[step][i] - expected[i]), 2e-2f)
              << "token " << i << " in step " << step << " by " << ranks << " ranks of " << blocks
              << " blocks, hidden " << shape.hidden;
      }
    }
  }
}

/// As a GPU runs it: all its blocks, and more of them a head than attend.
TEST_P(DenseDecoding, RanksThatShareAGpusShapeFindTheBitsOfOne) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  const Model model(shape);
  const auto alone = logits_of_ranks(GetParam(), model, 1, 128, 8);
  for (const uint32_t ranks : {2, 4})
    if (devices_apart(ranks))
      expect_same_bits(alone, logits_of_ranks(GetParam(), model, ranks, 128, 8));
}

/// Stages hand on words, which nobody counts: the error still tells whose are missing.
TEST_P(DenseDecoding, ARankThatEndsInTheMiddleOfAStepIsNamedWithWhatAwaitsIt) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU end together";
  DecoderShape shape = kSmall;
  shape.positions_max = 1024;  // Not at its end before somebody ends it.
  const Model model(shape);
  const std::vector<uint32_t> prompt(1000, 5);
  auto worlds = World::in_process(
      2, GetParam(), {.timeout = std::chrono::seconds(2), .arena_bytes = size_t{16} << 20});
  on_every_rank(2, [&](uint32_t rank) {
    World& world = *worlds[rank];
    const Graph::Place place{.rank = rank, .ranks = 2};
    TensorMemory memory(world);
    const DenseDecoder decoder(memory, shape, model.placed(memory, place),
                               {.blocks = 4, .prompts = {prompt}, .place = place});
    Megakernel kernel(world, decoder.graph(), {.workers = 4, .unit_bytes = decoder.unit_bytes()});
    kernel.start();
    kernel.feed(3);
    kernel.await(3);
    // Rank 1 ends between two tokens of its own, but rank 0 is told to go on.
    if (rank == 1) {
      world.cancel();
      EXPECT_THROW(kernel.stop(), Cancelled);
      return;
    }
    kernel.feed(1);
    try {
      kernel.await(4);
      ADD_FAILURE() << "rank 0 went on alone";
    } catch (const TaskTimeout& error) {
      EXPECT_EQ(error.facts.rank, 1u) << error.dump;
      EXPECT_THAT(error.facts.phase, testing::HasSubstr("of iteration 3 carries")) << error.dump;
    }
    EXPECT_EQ(kernel.finished_iterations(), 3u);
  });
}

struct Batch {
  uint32_t sequences, blocks, ring_units;
};

/// Each sequence has a prompt of its own, and finds what it would find alone.
void compare_batch(const std::string& device, const DecoderShape& shape, const Batch& batch,
                   uint32_t steps, float tolerance) {
  const Model model(shape);
  const auto worlds = World::in_process(
      1, device, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20});
  TensorMemory memory(*worlds[0]);
  std::vector<std::vector<uint32_t>> prompts(batch.sequences, std::vector<uint32_t>(steps + 1));
  for (uint32_t s = 0; s < batch.sequences; ++s)
    for (uint32_t i = 0; i <= steps; ++i) prompts[s][i] = (i * 7 + 3 + 11 * s) % shape.vocabulary;
  const DenseDecoder decoder(memory, shape, model.placed(memory),
                             {.blocks = batch.blocks, .prompts = prompts});
  Megakernel kernel(*worlds[0], decoder.graph(),
                    {.workers = batch.blocks,
                     .unit_bytes = decoder.unit_bytes(),
                     .ring_units = batch.ring_units});
  std::vector<Plain> plain(batch.sequences, Plain(model));
  Vector logits(size_t{batch.sequences} * shape.vocabulary);
  for (uint32_t step = 0; step < steps; ++step) {
    ASSERT_EQ(kernel.run(1), 1u);
    memory.read(logits.data(), decoder.logits, logits.size() * sizeof(float));
    for (uint32_t s = 0; s < batch.sequences; ++s) {
      const Vector expected = plain[s].logits(prompts[s][step]);
      for (uint32_t i = 0; i < expected.size(); ++i)
        ASSERT_LT(std::abs(logits[s * shape.vocabulary + i] - expected[i]), tolerance)
            << "token " << i << " of sequence " << s << " in step " << step;
    }
  }
}

TEST_P(DenseDecoding, SequencesSideBySideFindTheirOwnLogits) {
  for (const Batch& batch : {Batch{2, 8, 2}, Batch{2, 8, 4}, Batch{4, 16, 3}, Batch{8, 32, 4}})
    ASSERT_NO_FATAL_FAILURE(compare_batch(GetParam(), kSmall, batch, 6, 2e-2f))
        << batch.sequences << " sequences by " << batch.blocks << " blocks";
}

TEST_P(DenseDecoding, SequencesSideBySideOfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  for (const Batch& batch : {Batch{2, 128, 5}, Batch{4, 128, 4}, Batch{8, 128, 4}})
    ASSERT_NO_FATAL_FAILURE(compare_batch(GetParam(), shape, batch, 4, 5e-2f))
        << batch.sequences << " sequences";
}

/// The one with the stop token stands still, and the loop goes on until all have ended.
TEST_P(DenseDecoding, ASequenceThatHasEndedWaitsForTheOthers) {
  const auto world = alone({.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20});
  const Model model(kSmall);
  const auto decode = [&](uint32_t stop, std::vector<uint32_t>& status) {
    TensorMemory memory(*world);
    const DenseDecoder decoder(memory, kSmall, model.placed(memory),
                               {.blocks = 8, .prompts = {{3}, {8, 9}}, .stop_token = stop});
    Megakernel kernel(*world, decoder.graph(), {.workers = 8, .unit_bytes = decoder.unit_bytes()});
    kernel.run(0);
    const size_t positions = kSmall.positions_max + 1;
    std::vector<uint32_t> tokens(2 * positions);
    memory.read(tokens.data(), decoder.tokens, tokens.size() * sizeof(uint32_t));
    status.resize(2);
    memory.read(status.data(), decoder.status, 2 * sizeof(uint32_t));
    return std::vector{std::vector(tokens.begin(), tokens.begin() + positions),
                       std::vector(tokens.begin() + positions, tokens.end())};
  };
  std::vector<uint32_t> status;
  const auto whole = decode(UINT32_MAX, status);
  EXPECT_EQ(status, (std::vector<uint32_t>{2, 2}));  // Their caches are full.
  const uint32_t stop = whole[0][5];
  const auto stopped = decode(stop, status);
  EXPECT_EQ(status[0], 1u);
  const auto first = std::find(whole[0].begin() + 1, whole[0].end(), stop) + 1;
  EXPECT_TRUE(std::equal(whole[0].begin(), first, stopped[0].begin()));
  EXPECT_EQ(stopped[0][static_cast<size_t>(first - whole[0].begin())], 0u);
  const auto other = std::find(whole[1].begin() + 2, whole[1].end(), stop);
  EXPECT_TRUE(std::equal(whole[1].begin(), other, stopped[1].begin()));
}

TEST_P(DenseDecoding, NamesWhatItCannotDo) {
  const auto world = alone();
  TensorMemory memory(*world);
  DecoderShape shape = kSmall;
  shape.head_dim = 24;
  EXPECT_THROW(DenseDecoder(memory, shape, {}, {.blocks = 4, .prompts = {{1}}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 5, .prompts = {{1}}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompts = {{}}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 8, .prompts = {{1}, {2}, {3}}}),
               InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompts = {{1}, {2}}}),
               InvalidArgument);
  EXPECT_THROW(
      DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompts = {{1}}, .place = {.ranks = 3}}),
      InvalidArgument);
}

/// The embedding has no row for it; of ranks that share a model each has all rows.
TEST_P(DenseDecoding, ATokenBeyondTheVocabularyIsNamed) {
  const auto world = alone();
  TensorMemory memory(*world);
  for (const Graph::Place place : {Graph::Place{}, {.rank = 1, .ranks = 2}}) {
    try {
      DenseDecoder(memory, kSmall, {},
                   {.blocks = 8, .prompts = {{99}, {3, kSmall.vocabulary}}, .place = place});
      ADD_FAILURE() << "it was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument, "prompts");
      EXPECT_EQ(error.expected, "tokens below 100, the vocabulary");
      EXPECT_EQ(error.seen, "100 at position 1 of sequence 1");
    }
  }
}

}  // namespace
}  // namespace tokenyard::megakernel
