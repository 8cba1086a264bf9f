// Sequences that a dense decoder decodes together, compared with the plain model of each alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "decoder/decoder_shapes.hpp"
#include "decoder/plain_decoder.hpp"
#include "megakernel/devices.hpp"

namespace tokenyard::megakernel {
namespace {

class DecodingSideBySide : public OnDevices {};
INSTANTIATE_ON_DEVICES(DecodingSideBySide);

constexpr DecoderShape kSmall = small_shape(32), kGpus = gpus_shape(32);

struct Batch {
  uint32_t sequences, blocks, ring_units;
};

/// Each sequence has its own prompt, and gets the result that it would get alone.
void compare_batch(const std::string& device, const Model& model, const Batch& batch,
                   uint32_t steps, float tolerance) {
  const DecoderShape& shape = model.shape;
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
    memory.read(TensorView::of(std::span(logits)), {decoder.logits, {logits.size()}});
    for (uint32_t s = 0; s < batch.sequences; ++s) {
      const Vector expected = plain[s].logits(prompts[s][step]);
      for (uint32_t i = 0; i < expected.size(); ++i)
        ASSERT_LT(std::abs(logits[s * shape.vocabulary + i] - expected[i]), tolerance)
            << "token " << i << " of sequence " << s << " in step " << step;
    }
  }
}

TEST_P(DecodingSideBySide, SequencesSideBySideFindTheirOwnLogits) {
  for (const Batch& batch : {Batch{2, 8, 2}, Batch{2, 8, 4}, Batch{4, 16, 3}, Batch{8, 32, 4}})
    ASSERT_NO_FATAL_FAILURE(compare_batch(GetParam(), Model(kSmall), batch, 6, 2e-2f))
        << batch.sequences << " sequences by " << batch.blocks << " blocks";
}

TEST_P(DecodingSideBySide, SequencesSideBySideWithBiasesNormsAndWindows) {
  const Model model(kSmall, {.biases = true, .norms = true, .windows = {3}});
  ASSERT_NO_FATAL_FAILURE(compare_batch(GetParam(), model, {2, 8, 4}, 8, 2e-2f));
}

TEST_P(DecodingSideBySide, SequencesSideBySideOfAGpusShape) {
  if (on_host()) GTEST_SKIP() << "too much for the executor";
  const DecoderShape shape = kGpus;
  for (const Batch& batch : {Batch{2, 128, 5}, Batch{4, 128, 4}, Batch{8, 128, 4}})
    ASSERT_NO_FATAL_FAILURE(compare_batch(GetParam(), Model(shape), batch, 4, 5e-2f))
        << batch.sequences << " sequences";
}

/// The sequence with the stop token ends, and the loop continues until all have ended.
TEST_P(DecodingSideBySide, ASequenceThatHasEndedWaitsForTheOthers) {
  const auto world = alone({.timeout = std::chrono::seconds(20), .arena_bytes = size_t{16} << 20});
  const Model model(kSmall);
  const auto decode = [&](std::vector<uint32_t> stops, std::vector<uint32_t>& status) {
    TensorMemory memory(*world);
    const DenseDecoder decoder(
        memory, kSmall, model.placed(memory),
        {.blocks = 8, .prompts = {{3}, {8, 9}}, .stop_tokens = std::move(stops)});
    Megakernel kernel(*world, decoder.graph(), {.workers = 8, .unit_bytes = decoder.unit_bytes()});
    kernel.run(0);
    const size_t positions = kSmall.positions_max + 1;
    std::vector<uint32_t> tokens(2 * positions);
    memory.read(TensorView::of(std::span(tokens)), {decoder.tokens, {tokens.size()}});
    status.resize(2);
    memory.read(TensorView::of(std::span(status)), {decoder.status, {2}});
    return std::vector{std::vector(tokens.begin(), tokens.begin() + positions),
                       std::vector(tokens.begin() + positions, tokens.end())};
  };
  std::vector<uint32_t> status;
  const auto whole = decode({}, status);
  EXPECT_EQ(status, (std::vector<uint32_t>{2, 2}));  // Their caches are full.
  const uint32_t stop = whole[0][5];
  const auto stopped = decode({stop}, status);
  EXPECT_EQ(status[0], 1u);
  const auto first = std::find(whole[0].begin() + 1, whole[0].end(), stop) + 1;
  EXPECT_TRUE(std::equal(whole[0].begin(), first, stopped[0].begin()));
  EXPECT_EQ(stopped[0][static_cast<size_t>(first - whole[0].begin())], 0u);
  const auto other = std::find(whole[1].begin() + 2, whole[1].end(), stop);
  EXPECT_TRUE(std::equal(whole[1].begin(), other, stopped[1].begin()));
}

}  // namespace
}  // namespace tokenyard::megakernel
