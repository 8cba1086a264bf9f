// A dense decoder whose stages hand on words, against the plainest reading of the same model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megakernel/devices.hpp"
#include "megakernel/plain_decoder.hpp"
#include "megakernel/tasks/held_input.hpp"

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
                               {.blocks = blocks, .prompt = prompt});
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

constexpr DecoderShape kSmall{.vocabulary = 100,
                              .hidden = 64,
                              .layers = 2,
                              .query_heads = 8,
                              .kv_heads = 4,
                              .head_dim = 16,
                              .inner = 128,
                              .page_tokens = 4,
                              .positions_max = 32,
                              .epsilon = 1e-5f,
                              .rope_base = 10000};

TEST_P(DenseDecoding, FindsTheLogitsOfThePlainModel) {
  compare(kSmall, 4, 10, 2e-2f);
}

TEST_P(DenseDecoding, WithPositionsSplitAmongBlocks) {
  compare(kSmall, 8, 10, 2e-2f);
}

TEST_P(DenseDecoding, OfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  DecoderShape shape = kSmall;
  shape.vocabulary = 3000;
  shape.hidden = 2048;
  shape.query_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 64;
  shape.inner = 8192;
  shape.page_tokens = 16;
  compare(shape, 128, 4, 5e-2f);
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
                                           {.blocks = blocks, .prompt = prompt, .place = place});
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
  shape.inner = 4 * kHeldColumnsMax;
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

/// As a GPU runs it: all its blocks, and more of them a head than attend.
TEST_P(DenseDecoding, RanksThatShareAGpusShapeFindTheBitsOfOne) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  DecoderShape shape = kSmall;
  shape.vocabulary = 3000;
  shape.hidden = 2048;
  shape.query_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 64;
  shape.inner = 8192;
  shape.page_tokens = 16;
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
                               {.blocks = 4, .prompt = prompt, .place = place});
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

TEST_P(DenseDecoding, NamesWhatItCannotDo) {
  const auto world = alone();
  TensorMemory memory(*world);
  DecoderShape shape = kSmall;
  shape.head_dim = 24;
  EXPECT_THROW(DenseDecoder(memory, shape, {}, {.blocks = 4, .prompt = {1}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 5, .prompt = {1}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompt = {}}), InvalidArgument);
  EXPECT_THROW(
      DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompt = {1}, .place = {.ranks = 3}}),
      InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::megakernel
