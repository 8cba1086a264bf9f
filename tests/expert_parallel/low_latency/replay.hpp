/// Batches recorded once and repeated over other data in the same memory: as CUDA graphs, or on the
/// host by recording_accelerator.hpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "expert_parallel/low_latency/checks.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::test {

/// Records the work that a rank enqueues; returns a function that repeats it and waits for it.
using Recorder = std::function<std::function<void()>(Stream, const std::function<void()>&)>;

/// One rank's batches, in memory with fixed addresses.
class Replayed {
 public:
  Replayed(LowLatency& exchange, const LowLatencyCase& of, Stream stream)
      : exchange_(exchange),
        accelerator_(accelerator_of(exchange.world())),
        stream_(stream),
        of_(of),
        x_(accelerator_, mine().x),
        ids_(accelerator_, mine().ids),
        weights_(accelerator_, mine().weights),
        y_(accelerator_, size_t{of.shape.local_experts(exchange.world().rank())} * of.shape.ranks *
                             exchange.options().tokens_max * of.shape.hidden),
        combined_(exchange, of, mine()) {}

  /// Enqueues the recorded calls: dispatch and combine, each in one part or in two.
  void enqueue(std::chrono::nanoseconds timeout) {
    const LowLatencyCall call{.timeout = timeout, .hook = of_.hooks, .stream = stream_};
    const bool early = of_.gives_weights_early(exchange_.world().rank());
    const uint32_t tokens = mine().count, hidden = of_.shape.hidden, topk = of_.shape.topk;
    const ConstTensorView weights = weights_.view({tokens, topk}), none;
    received_ = exchange_.dispatch({.x = x_.view(DataType::bfloat16, {tokens, hidden}),
                                    .topk_idx = ids_.view({tokens, topk}),
                                    .topk_weights = early ? weights : none,
                                    .rows = of_.rows},
                                   call);
    if (of_.hooks) exchange_.receive(received_.handle, stream_);
    exchange_.combine({.y = y(),
                       .topk_weights = early ? none : weights,
                       .out = combined_.out.view(DataType::bfloat16, {tokens, hidden}),
                       .logfmt = of_.logfmt,
                       .lost = combined_.lost.view({tokens})},
                      received_.handle, call);
    if (of_.hooks) exchange_.receive(received_.handle, stream_);
  }

  /// Uploads new tokens and the experts' results for them; no old data remains that could pass as
  /// new.
  void fill(uint32_t seed, const std::set<uint32_t>& without = {}) {
    of_.seed = seed;
    all_ = of_.draw();
    upload(x_, mine().x);
    upload(ids_, mine().ids);
    upload(weights_, mine().weights);
    run_experts(exchange_, of_, all_, y(), without);
    combined_.out.poison();
    combined_.lost.poison();
  }

  std::string difference(const std::set<uint32_t>& without = {}) {
    return difference_after_dispatch(exchange_, of_, all_, received_, without) +
           difference_after_combine(exchange_, of_, mine(), combined_, without);
  }

 private:
  const Tokens& mine() const { return all_[exchange_.world().rank()]; }
  TensorView y() const {
    const uint64_t slots = uint64_t{of_.shape.ranks} * exchange_.options().tokens_max;
    return y_.view(DataType::bfloat16,
                   {of_.shape.local_experts(exchange_.world().rank()), slots, of_.shape.hidden});
  }
  template <class T>
  void upload(const DeviceArray<T>& to, const std::vector<T>& from) {
    accelerator_.copy(to.data(), from.data(), from.size() * sizeof(T), Stream{});
    await_all(accelerator_);
  }

  LowLatency& exchange_;
  Accelerator& accelerator_;
  const Stream stream_;
  LowLatencyCase of_;
  std::vector<Tokens> all_ = of_.draw();
  DeviceArray<uint16_t> x_;
  DeviceArray<int64_t> ids_;
  DeviceArray<float> weights_;
  DeviceArray<uint16_t> y_;
  CombineOnDevice combined_;
  LowLatencyReceived received_;
};

/// Returns the latest epoch of any rank. All streams must have been drained.
inline uint32_t agreed_epoch(LowLatency& exchange) {
  return std::ranges::max(gather(exchange.world(), exchange.epoch(), "epochs of the ranks"),
                          [](uint32_t epoch, uint32_t than) {
                            return static_cast<int32_t>(epoch - than) < 0;  // Epochs wrap.
                          });
}

/// Replays with other data; checks the results of each replay.
class CheckedReplays {
 public:
  CheckedReplays(LowLatency& exchange, const LowLatencyCase& of, const Recorder& record,
                 Stream stream)
      : exchange_(exchange),
        world_(exchange.world()),
        record_(record),
        stream_(stream),
        batch_(exchange, of, stream) {
    batch_.fill(seed_);
    record_anew();
  }

  void record_anew() {
    replay_ = record_(stream_, [this] { batch_.enqueue(kTimeout); });
  }
  void replay(const std::set<uint32_t>& without = {}) {
    batch_.fill(++seed_, without);
    world_.barrier("the tokens are there");
    replay_();
    EXPECT_EQ(batch_.difference(without), "") << "replay " << seed_;
    EXPECT_EQ(exchange_.failed_ranks().size(), without.size()) << "replay " << seed_;
  }
  /// The last rank does not replay. The others' graphs end at the deadline, exact without it.
  void replay_but_for_the_last() {
    if (world_.rank() != last()) return replay({last()});
    ++seed_;
    world_.barrier("the tokens are there");
  }
  /// The last rank and the others leave one another out from now on.
  std::set<uint32_t> mask_by_hand() {
    std::set<uint32_t> without;
    for (uint32_t rank = 0; rank < world_.size(); ++rank)
      if ((rank == last()) != (world_.rank() == last())) without.insert(rank);
    for (const uint32_t rank : without) exchange_.update_mask(rank, true);
    return without;
  }
  void restart() {
    world_.barrier("all are idle");
    exchange_.restart(agreed_epoch(exchange_));
    world_.barrier("all have restarted");
  }

 private:
  // One recorded deadline serves replays that all ranks make, however slow the machine, and the
  // replay that a rank misses.
  static constexpr std::chrono::seconds kTimeout{3};

  uint32_t last() const { return world_.size() - 1; }

  LowLatency& exchange_;
  World& world_;
  const Recorder& record_;
  const Stream stream_;
  uint32_t seed_ = 1;
  Replayed batch_;
  std::function<void()> replay_;
};

/// Combines replays with calls that are not recorded, a replay that a rank misses, and masks set by
/// the caller: none of these may affect what was recorded, in whatever order.
inline void check_replays(World& world, const LowLatencyCase& of, const Recorder& record) {
  LowLatency exchange(world, of.options());
  Accelerator& accelerator = accelerator_of(world);
  const Stream stream = accelerator.make_stream();
  {
    CheckedReplays graph(exchange, of, record, stream);
    for (uint32_t turn = 0; turn < 5; ++turn) graph.replay();
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
    for (uint32_t turn = 0; turn < 3; ++turn) graph.replay();
    if (world.size() > 1) {
      graph.replay_but_for_the_last();
      graph.restart();
      for (uint32_t turn = 0; turn < 3; ++turn) graph.replay();
      graph.replay(graph.mask_by_hand());
      graph.restart();
      graph.replay();
      const std::set<uint32_t> without = graph.mask_by_hand();
      graph.record_anew();
      graph.replay(without);
      graph.restart();
      for (uint32_t turn = 0; turn < 3; ++turn) graph.replay();
    }
  }
  exchange.close();
  accelerator.free_stream(stream);
}

/// The odd ranks publish their weights in the dispatch.
inline LowLatencyCase replayed_case(uint32_t ranks, bool hooks) {
  LowLatencyCase of{.shape = {.ranks = ranks, .experts = 4 * ranks, .hidden = 544, .topk = 4},
                    .tokens = {9, 14, 3, 7},
                    .picking = {.none = 0.1},
                    .hooks = hooks,
                    .early_weights = 0b1010};
  of.tokens.resize(ranks);
  return of;
}

}  // namespace tokenyard::test
