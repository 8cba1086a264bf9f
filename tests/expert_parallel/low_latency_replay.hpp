/// Batches that are recorded once and run again over other data in the same memory: CUDA graphs,
/// and on the host the same sequence without one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "expert_parallel/low_latency_checks.hpp"
#include "fabric/gather.hpp"

namespace tokenyard::test {

/// Makes of what a rank enqueues something to run again, and to wait for: a CUDA graph, or itself.
using Recorder = std::function<std::function<void()>(Stream, const std::function<void()>&)>;

/// One rank's batches in memory that stays where it is.
class Replayed {
 public:
  Replayed(LowLatency& exchange, const LowLatencyCase& of, Stream stream)
      : exchange_(exchange),
        accelerator_(exchange.world().accelerator()),
        stream_(stream),
        of_(of),
        x_(accelerator_, mine().x),
        ids_(accelerator_, mine().ids),
        weights_(accelerator_, mine().weights),
        y_(accelerator_, size_t{of.shape.local_experts()} * of.shape.ranks *
                             exchange.options().tokens_max * of.shape.hidden),
        combined_(exchange, of, mine()) {}

  /// What is recorded: dispatch and combine, each in one part or in two.
  void enqueue(std::chrono::nanoseconds timeout) {
    const LowLatencyCall call{.timeout = timeout, .hook = of_.hooks, .stream = stream_.native};
    const bool early = of_.gives_weights_early(exchange_.world().rank());
    received_ = exchange_.dispatch({.x = x_.data(),
                                    .topk_idx = ids_.data(),
                                    .weights = early ? weights_.data() : nullptr,
                                    .tokens = mine().count,
                                    .rows = of_.rows},
                                   call);
    if (of_.hooks) exchange_.receive(received_.handle, stream_.native);
    exchange_.combine({.y = y_.data(),
                       .weights = early ? nullptr : weights_.data(),
                       .out = combined_.out.data(),
                       .logfmt = of_.logfmt,
                       .lost = combined_.lost.data()},
                      received_.handle, call);
    if (of_.hooks) exchange_.receive(received_.handle, stream_.native);
  }

  /// New tokens, and what the experts will make of them; nothing old is left to be taken for new.
  void fill(uint32_t seed, const std::set<uint32_t>& without = {}) {
    of_.seed = seed;
    all_ = of_.draw();
    upload(x_, mine().x);
    upload(ids_, mine().ids);
    upload(weights_, mine().weights);
    run_experts(exchange_, of_, all_, y_.data(), without);
    combined_.out.poison();
    combined_.lost.poison();
  }

  std::string difference(const std::set<uint32_t>& without = {}) {
    return difference_after_dispatch(exchange_, of_, all_, received_, without) +
           difference_after_combine(exchange_, of_, mine(), combined_, without);
  }

 private:
  const Tokens& mine() const { return all_[exchange_.world().rank()]; }
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

/// The largest epoch of any rank, whose streams are drained.
inline uint32_t agreed_epoch(LowLatency& exchange) {
  return std::ranges::max(gather(exchange.world(), exchange.epoch(), "epochs of the ranks"));
}

/// Replays with other data, beside calls that are not recorded, and one that a rank misses.
inline void check_replays(World& world, const LowLatencyCase& of, const Recorder& record) {
  // One recorded deadline for replays that all ranks make, however slow the machine, and for the
  // one that a rank misses.
  constexpr std::chrono::seconds kTimeout{3};
  LowLatency exchange(world, of.options());
  Accelerator& accelerator = world.accelerator();
  const Stream stream = accelerator.make_stream();
  {
    Replayed batch(exchange, of, stream);
    batch.fill(1);
    const std::function<void()> replay = record(stream, [&] { batch.enqueue(kTimeout); });
    const auto check = [&](uint32_t seed, const std::set<uint32_t>& without = {}) {
      batch.fill(seed, without);
      world.barrier("the tokens are there");
      replay();
      EXPECT_EQ(batch.difference(without), "") << "replay " << seed;
    };
    for (uint32_t seed = 2; seed < 7; ++seed) check(seed);
    EXPECT_EQ(difference_after_batch(exchange, of, of.draw()), "");
    for (uint32_t seed = 7; seed < 10; ++seed) check(seed);
    EXPECT_TRUE(exchange.masked().empty());
    if (world.size() > 1) {
      // The last rank does not replay. The others' graphs end at the deadline, exact without it.
      const uint32_t last = world.size() - 1;
      if (world.rank() == last) {
        world.barrier("the tokens are there");
      } else {
        check(10, {last});
        EXPECT_EQ(exchange.masked().size(), 1u);
      }
      world.barrier("all are idle");
      const uint32_t epoch = agreed_epoch(exchange);
      exchange.restart(epoch);
      world.barrier("all have restarted");
      for (uint32_t seed = 11; seed < 14; ++seed) check(seed);
      EXPECT_TRUE(exchange.masked().empty());
    }
  }
  exchange.close();
  accelerator.free_stream(stream);
}

/// The odd ranks tell their weights in the dispatch.
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
