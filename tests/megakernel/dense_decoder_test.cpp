// A dense decoder whose stages hand on words, against the plainest reading of the same model.
#include <gtest/gtest.h>

#include <cmath>

#include "megakernel/devices.hpp"
#include "megakernel/plain_decoder.hpp"

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

TEST_P(DenseDecoding, NamesWhatItCannotDo) {
  const auto world = alone();
  TensorMemory memory(*world);
  DecoderShape shape = kSmall;
  shape.head_dim = 24;
  EXPECT_THROW(DenseDecoder(memory, shape, {}, {.blocks = 4, .prompt = {1}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 5, .prompt = {1}}), InvalidArgument);
  EXPECT_THROW(DenseDecoder(memory, kSmall, {}, {.blocks = 4, .prompt = {}}), InvalidArgument);
}

}  // namespace
}  // namespace tokenyard::megakernel
