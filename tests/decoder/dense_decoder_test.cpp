// A dense decoder whose stages pass on words, compared with the plain model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "decoder/decoder_shapes.hpp"
#include "decoder/plain_decoder.hpp"
#include "decoder/tasks/slices.hpp"
#include "megakernel/devices.hpp"

namespace tokenyard::megakernel {
namespace {

class DenseDecoding : public OnDevices {
 protected:
  /// Compares the logits of every step with those of the plain model, given the same tokens.
  void compare(const DecoderShape& shape, uint32_t blocks, uint32_t steps, float tolerance) const {
    compare(Model(shape), blocks, steps, tolerance);
  }
  void compare(const Model& model, uint32_t blocks, uint32_t steps, float tolerance) const {
    const DecoderShape& shape = model.shape;
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
      memory.read(TensorView::of(std::span(logits)), {decoder.logits, {logits.size()}});
      const Vector expected = plain.logits(prompt[step]);
      float worst = 0;
      for (size_t i = 0; i < logits.size(); ++i)
        worst = std::max(worst, std::abs(logits[i] - expected[i]));
      EXPECT_LT(worst, tolerance) << "in step " << step;
    }
    uint32_t status = 99;
    memory.read({&status, {1}}, {decoder.status, {1}});
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

/// Each alone, and all together: biases of Q, K and V as in Qwen2, norms of Q and K as in Qwen3,
/// windows as in Mistral.
const std::vector<Model::Extras> kExtras{
    {.biases = true},
    {.norms = true},
    {.windows = {3, 1}},
    {.biases = true, .norms = true, .windows = {5}},
};

TEST_P(DenseDecoding, WithBiasesNormsAndWindows) {
  for (const Model::Extras& extras : kExtras)
    for (const uint32_t blocks : {4, 8})
      ASSERT_NO_FATAL_FAILURE(compare(Model(kSmall, extras), blocks, 12, 2e-2f))
          << "biases " << extras.biases << ", norms " << extras.norms << ", windows "
          << extras.windows.size() << ", blocks " << blocks;
}

TEST_P(DenseDecoding, OfAGpusShapeWithBiasesNormsAndWindows) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  for (const Model::Extras& extras : kExtras)
    ASSERT_NO_FATAL_FAILURE(compare(Model(kGpus, extras), 128, 8, 5e-2f));
}

TEST_P(DenseDecoding, OfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  compare(shape, 128, 4, 5e-2f);
}

/// Decodes from the middle of a cache filled with random numbers to its end.
void compare_at(const std::string& device, const Model& model, uint32_t blocks, uint32_t position,
                float tolerance) {
  const DecoderShape& shape = model.shape;
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
    memory.write({decoder.k_cache + to, DataType::bfloat16, {row}},
                 {keys.data() + head * row, {row}});
    memory.write({decoder.v_cache + to, DataType::bfloat16, {row}},
                 {values.data() + head * row, {row}});
  }
  memory.write({decoder.position, {1}}, {&position, {1}});
  memory.write({decoder.token, {1}}, {&prompt[position], {1}});
  Plain plain(model);
  plain.begin(position, keys, values);
  Megakernel kernel(*worlds[0], decoder.graph(),
                    {.workers = blocks, .unit_bytes = decoder.unit_bytes()});
  Vector logits(shape.vocabulary);
  for (uint32_t at = position; at < shape.positions_max; ++at) {
    ASSERT_EQ(kernel.run(1), 1u);
    memory.read(TensorView::of(std::span(logits)), {decoder.logits, {logits.size()}});
    const Vector expected = plain.logits(prompt[at]);
    for (size_t i = 0; i < logits.size(); ++i)
      ASSERT_LT(std::abs(logits[i] - expected[i]), tolerance)
          << "token " << i << " at position " << at;
  }
  uint32_t status = 99;
  memory.read({&status, {1}}, {decoder.status, {1}});
  EXPECT_EQ(status, 2u) << "the cache is full";
}

TEST_P(DenseDecoding, AtTheEndOfALongContext) {
  DecoderShape shape = kSmall;
  shape.kv_heads = 2;
  shape.query_heads = 4;
  shape.positions_max = 4096;
  compare_at(GetParam(), Model(shape), 16, 4094, 2e-2f);
}

/// A window that the earliest positions left long ago, across pages, in more splits.
TEST_P(DenseDecoding, WithAWindowAtTheEndOfALongContext) {
  DecoderShape shape = kSmall;
  shape.kv_heads = 2;
  shape.query_heads = 4;
  shape.positions_max = 1024;
  for (const uint32_t blocks : {4, 16})
    for (const uint32_t window : {1023, 501, 16})
      ASSERT_NO_FATAL_FAILURE(
          compare_at(GetParam(), Model(shape, {.windows = {window}}), blocks, 1020, 2e-2f))
          << "a window of " << window << ", " << blocks << " blocks";
}

/// A split holds its share of the window, not of the cache.
TEST_P(DenseDecoding, AWindowMakesRoomForALongerContext) {
  DecoderShape shape = kSmall;
  shape.positions_max = 4096;
  shape.layers = 1;
  const auto world = alone({.timeout = std::chrono::seconds(20), .arena_bytes = size_t{32} << 20});
  for (const uint32_t window : {UINT32_MAX, 512u}) {
    TensorMemory memory(*world);
    const Model model(shape, {.windows = {window}});
    const auto make = [&] {
      DenseDecoder(memory, shape, model.placed(memory), {.blocks = 4, .prompts = {{1}}});
    };
    if (window == 512)
      EXPECT_NO_THROW(make());
    else
      EXPECT_THROW(make(), InvalidArgument);
  }
}

TEST_P(DenseDecoding, OfAGpusShapeAtTheEndOfALongContext) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  DecoderShape shape = kGpus;
  shape.positions_max = 4096;
  compare_at(GetParam(), Model(shape), 128, 4090, 5e-2f);
}

/// Returns the logits of each step over the whole vocabulary, from ranks that share the model,
/// given the same tokens.
std::vector<Vector> logits_of_ranks(const std::string& device, const Model& model, uint32_t ranks,
                                    uint32_t blocks, uint32_t steps) {
  const DecoderShape& shape = model.shape;
  std::vector<uint32_t> prompt(steps + 1);
  for (uint32_t i = 0; i < prompt.size(); ++i) prompt[i] = (i * 7 + 3) % shape.vocabulary;
  std::vector<Vector> all(steps, Vector(shape.vocabulary));
  run_threads(
      device, ranks, {.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20},
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
          memory.read({all[step].data() + place.rank * mine, {mine}}, {decoder.logits, {mine}});
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

/// Ranks add the same terms to the same sums as a single rank, so rounding is identical.
TEST_P(DenseDecoding, RanksThatShareAModelFindTheBitsOfOne) {
  DecoderShape shape = kSmall;
  shape.layers = 1;
  shape.inner = 4 * kVectorMax;  // One part per rank, for four ranks.
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

/// Each rank has the biases of its own heads.
TEST_P(DenseDecoding, RanksThatShareAModelWithBiasesNormsAndWindows) {
  const Model model(kSmall, {.biases = true, .norms = true, .windows = {3}});
  const auto found = logits_of_ranks(GetParam(), model, 2, 4, 8);
  Plain plain(model);
  for (uint32_t step = 0; step < found.size(); ++step) {
    const Vector expected = plain.logits((step * 7 + 3) % kSmall.vocabulary);
    for (uint32_t i = 0; i < expected.size(); ++i)
      ASSERT_LT(std::abs(found[step][i] - expected[i]), 2e-2f)
          << "token " << i << " in step " << step;
  }
}

/// There are fewer rows of QKV, of gate/up, of the down projection and of the head than blocks.
/// Blocks without rows must not wait for words that may be cleared before they see them.
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
      const uint32_t blocks = shape.hidden / 8 * shape.kv_heads / ranks;  // The maximum.
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

/// As on a GPU: with all its blocks, and more of them per head than attend.
TEST_P(DenseDecoding, RanksThatShareAGpusShapeFindTheBitsOfOne) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  const Model model(shape);
  const auto alone = logits_of_ranks(GetParam(), model, 1, 128, 8);
  for (const uint32_t ranks : {2, 4})
    if (devices_apart(ranks))
      expect_same_bits(alone, logits_of_ranks(GetParam(), model, ranks, 128, 8));
}

/// Words that stages pass on have no counters: the error still names the missing ones.
TEST_P(DenseDecoding, ARankThatEndsInTheMiddleOfAStepIsNamedWithWhatAwaitsIt) {
  if (!devices_apart(2)) GTEST_SKIP() << "ranks that share a GPU end together";
  DecoderShape shape = kSmall;
  shape.positions_max = 1024;  // Long enough not to end before rank 1 does.
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
    // Rank 1 ends between two tokens of its own, while rank 0 is fed further iterations.
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
      EXPECT_THAT(error.facts.phase,
                  testing::ContainsRegex("awaits the words of .* of iteration 3"))
          << error.dump;
    }
    EXPECT_EQ(kernel.finished_iterations(), 3u);
  });
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

TEST_P(DenseDecoding, NamesLayersThatCannotBe) {
  const auto world = alone();
  TensorMemory memory(*world);
  const DecoderWeights whole = Model(kSmall).placed(memory);
  const auto complaint = [&](auto change) -> std::string {
    DecoderWeights weights = whole;
    DecoderOptions options{.blocks = 4, .prompts = {{1}}};
    change(weights, options);
    try {
      DenseDecoder(memory, kSmall, weights, options);
    } catch (const InvalidArgument& error) {
      return error.argument + ": " + error.expected + ", got " + error.seen;
    }
    return "it was taken";
  };
  EXPECT_EQ(complaint([](auto&, auto&) {}), "it was taken");
  EXPECT_EQ(complaint([](auto& weights, auto&) { weights.layers.pop_back(); }), "layers: 2, got 1");
  EXPECT_EQ(complaint([](auto& weights, auto&) { weights.layers[1].window = 0; }),
            "window: at least 1 position, got 0 in layer 1");
  EXPECT_EQ(complaint([&](auto& weights, auto&) { weights.layers[1].q_norm = whole.final_norm; }),
            "q_norm: both q_norm and k_norm, or neither, got one of them in layer 1");
  EXPECT_EQ(complaint([](auto&, auto& options) {
              options.stop_tokens = {3, 100};
            }),
            "stop_tokens: tokens below 100, the vocabulary, got 100");
  EXPECT_EQ(complaint([](auto&, auto& options) { options.stop_tokens.assign(9, 1); }),
            "stop_tokens: at most 8, got 9");
}

/// The embedding has no row for such a token; each rank that shares a model has all rows.
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
