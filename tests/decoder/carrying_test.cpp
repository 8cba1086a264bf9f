// The sums that a block of a dense decoder reads, and those that it must not read
// (tasks/residual.hpp): single tasks, for which exactly the sums that they must not need are
// missing.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "decoder/tasks/dense.hpp"
#include "decoder/tasks/layer.hpp"
#include "decoder/tasks/logits.hpp"
#include "megakernel/devices.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {
namespace {

using Words = VectorWords<1>;

/// One chunk more than a warp's slice, so that another warp has the last one.
constexpr uint32_t kHidden = kSliceColumns + kChunk, kChunks = kHidden / kChunk;
constexpr uint32_t kVectorWords = vector_words(1, kHidden);

uint64_t complete(uint32_t chunk, uint32_t element, uint32_t terms) {
  return static_cast<uint64_t>(chunk * kChunk + element) << 8 | terms;
}

class Carrying : public OnDevices {
 protected:
  void SetUp() override {
    OnDevices::SetUp();
    if (IsSkipped()) return;
    world_ = alone(quick(std::chrono::seconds(3)));
    memory_.emplace(*world_);
    // Some task must signal the events that tasks await.
    graph_.add<GateUp<Alone<>>>(carries(sums({}, 0), sums({}, 0), 0, {}),
                                {.signals = {{vector_}}, .worker = 0});
  }

  /// Returns a vector of which only these chunks are complete.
  uint64_t* sums(const BlockShare& come, uint32_t terms) {
    std::vector<uint64_t> words(kVectorWords);
    for (uint32_t chunk = come.begin; chunk < come.end; ++chunk)
      for (uint32_t e = 0; e < kChunk; ++e)
        words[Words::at(0, chunk, e)] = complete(chunk, e, terms);
    return placed(words);
  }
  template <class T>
  T* placed(const std::vector<T>& values) {
    const TensorView at = memory_->local(values.size() * sizeof(T));
    memory_->write(at, ConstTensorView::bytes_at(values.data(), values.size() * sizeof(T)));
    return at.as<T>();
  }
  std::vector<uint64_t> read(const uint64_t* vector) {
    std::vector<uint64_t> words(kVectorWords);
    memory_->read(TensorView::of(std::span(words)), {vector, {kVectorWords}});
    return words;
  }
  /// Returns the arguments of a block without rows, which multiplies nothing.
  GateUp<Alone<>>::Args carries(uint64_t* from, uint64_t* to, uint32_t terms,
                                const BlockShare& carried) {
    return {.weights = placed(std::vector<BFloat16>(kTileElements)),
            .norm = norm(),
            .sums = from,
            .carry_to = to,
            .inner = placed(std::vector<uint32_t>(kVectorWords)),
            .broken = placed(std::vector<uint32_t>{0}),
            .first = 0,
            .bands = 0,
            .hidden = kHidden,
            .terms = terms,
            .residual_event = vector_.id,
            .carried = carried,
            .epsilon = 1};
  }
  const BFloat16* norm() { return placed(std::vector<BFloat16>(kHidden)); }

  void run() {
    graph_.once();
    graph_.need_warps(2);
    Megakernel kernel(*world_, graph_, {.workers = 2, .compute_warps = 2, .unit_bytes = 4096});
    EXPECT_EQ(kernel.run(1), 1u);
  }

  std::unique_ptr<World> world_;
  std::optional<TensorMemory> memory_;
  Graph graph_{dense_tasks(), {}};
  const Event vector_ = graph_.event({.name = "vector", .carried = true});
};
INSTANTIATE_ON_DEVICES(Carrying);

/// The rest of the vector may have been cleared: no block waits for one that adds no products.
TEST_P(Carrying, ABlockWithoutRowsAwaitsNoWordThatItDoesNotCarry) {
  constexpr BlockShare kMine{3, 5};
  uint64_t* const from = sums(kMine, 7);
  uint64_t* const after_gate_up = sums({}, 0);
  uint64_t* const after_qkv = sums({}, 0);
  const auto gate_up = carries(from, after_gate_up, 7, kMine);
  graph_.add<GateUp<Alone<>>>(gate_up, {.waits = {{vector_}}, .worker = 0});
  graph_.add<ProjectQkv<Alone<>>>({.weights = gate_up.weights,
                                   .norm = gate_up.norm,
                                   .sums = from,
                                   .table = nullptr,
                                   .token = nullptr,
                                   .carry_to = after_qkv,
                                   .qkv = placed(std::vector<Stamped>(kTileRows)),
                                   .broken = gate_up.broken,
                                   .bands = 0,
                                   .hidden = kHidden,
                                   .terms = 7,
                                   .residual_event = vector_.id,
                                   .sequence_words = 0,
                                   .carried = kMine,
                                   .epsilon = 1},
                                  {.waits = {{vector_}}, .worker = 1});
  run();
  const std::vector<uint64_t> expected = read(sums(kMine, 1));
  EXPECT_EQ(read(after_gate_up), expected);
  EXPECT_EQ(read(after_qkv), expected);
}

/// One warp's slice of the last vector is complete long before the other's, whose inputs are still
/// being read.
TEST_P(Carrying, NothingIsClearedBeforeTheWholeLastVectorHasCome) {
  constexpr BlockShare kLast{kChunks - 1, kChunks};
  uint64_t* const earlier = sums({0, kChunks}, 1);
  uint64_t* const last = sums({0, kChunks - 1}, 1);
  graph_.add<ProjectLogits<Alone<>>>(
      {.weights = placed(std::vector<BFloat16>(tiled_elements(kTileRows, kHidden))),
       .norm = norm(),
       .sums = last,
       .cleared = earlier,
       .logits = placed(std::vector<float>(kTileRows)),
       .best = placed(std::vector<Best>(1)),
       .rows = kTileRows,
       .first_token = 0,
       .hidden = kHidden,
       .terms = 1,
       .stages = 1,
       .residual_event = vector_.id,
       .sequence_logits = kTileRows,
       .stage_words = kVectorWords,
       .cleared_words = {0, kVectorWords},
       .epsilon = 1},
      {.waits = {{vector_}}, .worker = 0});
  // By tasks without work, until the other worker has waited for a while.
  const auto idle = carries(earlier, last, 1, {});
  for (uint32_t i = 0; i < 200; ++i) graph_.add<GateUp<Alone<>>>(idle, {.worker = 1});
  graph_.add<GateUp<Alone<>>>(carries(earlier, last, 1, kLast),
                              {.waits = {{vector_}}, .worker = 1});
  run();
  EXPECT_EQ(read(earlier), std::vector<uint64_t>(kVectorWords));
  EXPECT_EQ(read(last), read(sums({0, kChunks}, 1)));
}

}  // namespace
}  // namespace tokenyard::megakernel
