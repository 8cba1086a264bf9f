// Waits of collectives read the host's abort flag, across PCIe on a GPU, at a bounded rate: once
// per block and millisecond, whatever number of threads wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/slots.hpp"
#include "device/block_deadline.hpp"
#include "simt/direct_memory.hpp"
#include "simt/executor.hpp"

namespace tokenyard::test {
namespace {

using namespace device_collectives;
using simt::DirectMemory;
using simt::Executor;
using simt::ThreadName;

/// Memory that counts the loads of one word.
class CountingMemory final : public DirectMemory {
 public:
  explicit CountingMemory(const void* word) : word_(word) {}
  void load(const ThreadName& me, const void* from, void* value, uint32_t bytes, Order order,
            Scope scope, simt::CodeAddress where) override {
    if (from == word_) ++loads;
    DirectMemory::load(me, from, value, bytes, order, scope, where);
  }
  uint32_t loads = 0;

 private:
  const void* word_;
};

/// Time that passes with each reading of the clock, as it does where threads poll.
class PassingTime final : public simt::TimeSource {
 public:
  uint64_t now_ns() override { return now_ns_ += 1000; }
  void idle(uint32_t, uint64_t) override { now_ns_ += 10'000; }

 private:
  uint64_t now_ns_ = 1'000'000'000;
};

constexpr uint32_t kBlocks = 2, kWarps = 3, kTimeoutMs = 50;

/// Rank 0 of two ranks, whose peer never begins the call.
class LonelyRank {
 public:
  LonelyRank()
      : window_(layout().bytes() + 64),
        peers_window_(window_.size()),
        tensor_(kBytes),
        workspace_(std::make_unique<Workspace>()),
        memory_(&abort_flag_[0]) {}

  CallParams params() {
    const Movement movement{.reduces = true, .part = kBytes, .whole = kBytes, .end = kBytes};
    std::byte* const windows[] = {aligned(window_), aligned(peers_window_)};
    return {.rank = 0,
            .ranks = 2,
            .signature = Signature::of(Operation::all_reduce, ReduceOp::sum, DataType::float32,
                                       Protocol::slots, 0, kBytes),
            .movement = movement,
            .type = DataType::float32,
            .op = ReduceOp::sum,
            .factor = 1,
            .input = tensor_.data(),
            .result = tensor_.data(),
            .windows = {.peers = Peers::of(windows, 0, nullptr), .layout = layout()},
            .workspace = workspace_.get(),
            .wait_context = {.timeout_ns = kTimeoutMs * 1'000'000ull,
                             .failed = &failed_,
                             .abort_flag = abort_flag_,
                             .report = &report_}};
  }

  /// Runs the kernel until its waits have failed, and returns the loads of the abort flag.
  template <class Params>
  uint32_t loads_in(const Kernel<Params>& kernel, const Params& params) {
    simt::RoundRobin schedule;
    PassingTime time;
    Executor executor({.memory = memory_, .schedule = schedule, .time = time});
    const auto grid = executor.launch(0, kernel.entry, {kBlocks, 32 * kWarps}, &params);
    executor.run([&] { return grid->running == 0; });
    return memory_.loads;
  }
  Failure failure() const { return static_cast<Failure>(failed_); }
  void set(AbortWord flag) { abort_flag_[0] = flag; }
  void leave(uint32_t rank) {
    abort_flag_[1 + rank] = kLeft;
    set(kLeft);
  }
  const WaitReport& report() const { return report_; }

 private:
  static constexpr uint64_t kBytes = 4096;
  static WindowLayout layout() {
    return {.ranks = 2,
            .slots = kBytes / 8,
            .packets = kBytes / 16,
            .rings = {.chunk_bytes = 256, .places = 4},
            .channel_places = 1};
  }
  static std::byte* aligned(std::vector<std::byte>& bytes) {
    const auto at = reinterpret_cast<uintptr_t>(bytes.data());
    return bytes.data() + (64 - at % 64) % 64;
  }

  std::vector<std::byte> window_, peers_window_, tensor_;
  std::unique_ptr<Workspace> workspace_;
  uint32_t failed_ = 0;
  AbortWord abort_flag_[3] = {};
  WaitReport report_{};
  CountingMemory memory_;
};

constexpr uint32_t kLoadsMax = kBlocks * (kTimeoutMs * 1'000'000 / kTurnNs + 2);

TEST(DeviceCollectivesListening, WaitsForSlotsReadTheFlagInTurns) {
  LonelyRank rank;
  const uint32_t loads =
      rank.loads_in(slots_kernel, SlotsParams{rank.params(), 512, 512 / kBlocks});
  EXPECT_EQ(rank.failure(), Failure::deadline);
  EXPECT_LE(loads, kLoadsMax);
  EXPECT_GT(loads, kBlocks);
}

TEST(DeviceCollectivesListening, WaitsForChunksReadTheFlagInTurns) {
  LonelyRank rank;
  const uint32_t loads = rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
  EXPECT_EQ(rank.failure(), Failure::deadline);
  EXPECT_LE(loads, kLoadsMax);
  EXPECT_GT(loads, kBlocks);
}

TEST(DeviceCollectivesListening, TheFlagEndsAllWaitsOfAKernel) {
  LonelyRank rank;
  rank.set(abort_for_lost(1));
  rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
  EXPECT_EQ(rank.failure(), Failure::abort_flag);
  EXPECT_LT(rank.report().waited_ns, kTimeoutMs * 1'000'000ull);
}

// One thread of a block reads the words of all ranks, so a goodbye reaches the wait that it ends.
TEST(DeviceCollectivesListening, AGoodbyeEndsWaitsForItsRank) {
  for (const Protocol protocol : {Protocol::slots, Protocol::packets, Protocol::rings}) {
    LonelyRank rank;
    rank.leave(1);
    if (protocol == Protocol::slots)
      rank.loads_in(slots_kernel, SlotsParams{rank.params(), 512, 512 / kBlocks});
    else if (protocol == Protocol::packets)
      rank.loads_in(packets_kernel, PacketsParams{rank.params(), {}, 256, 256 / kBlocks, true});
    else
      rank.loads_in(rings_kernel, RingsParams{rank.params(), 256, 1});
    EXPECT_EQ(rank.failure(), Failure::left);
    EXPECT_EQ(rank.report().rank, 1u);
    EXPECT_LT(rank.report().waited_ns, kTimeoutMs * 1'000'000ull);
  }
}

}  // namespace
}  // namespace tokenyard::test
