/// A rank of two whose peer never runs: kernels of one rank, on the host.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives/device/kernels/device_call.hpp"
#include "device/kernel.hpp"
#include "simt/direct_memory.hpp"
#include "simt/executor.hpp"

namespace tokenyard::test {

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

inline constexpr uint32_t kBlocks = 2, kWarps = 3, kTimeoutMs = 50;

/// Rank 0. Its peer does what a test says.
class LonelyRank {
 public:
  LonelyRank()
      : window_(layout().bytes() + 64),
        peers_window_(window_.size()),
        tensor_(kBytes),
        workspace_(std::make_unique<Workspace>()),
        memory_(&abort_flag_[0]) {}

  static Movement all_reduce() {
    return {.reduces = true, .part = kBytes, .whole = kBytes, .end = kBytes};
  }
  static Movement broadcast_from_peer() {
    return {.only_from_root = true, .root = 1, .part = kBytes, .whole = kBytes, .end = kBytes};
  }

  CallParams params(const Movement& movement = all_reduce()) {
    std::byte* const windows[] = {aligned(window_), aligned(peers_window_)};
    return {.rank = 0,
            .ranks = 2,
            .empty = {},
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

  /// The peer has begun a call, the first of both ranks.
  void begin_as_peer(const Signature& signature) {
    put(layout().call(1, 1), CallWord::of(1, signature).bits);
  }
  /// The peer has sent all packets of its call.
  void send_packets_as_peer() {
    for (uint32_t piece = 0; piece < layout().packets; ++piece)
      put(layout().packet(1, 0, 1) + piece * sizeof(Bytes16), {{1, 2, 3, 4}});
  }
  const std::vector<std::byte>& tensor() const { return tensor_; }
  /// Returns whether this rank has emptied all packets of its peer.
  bool packets_are_empty() {
    const std::byte* const begin = aligned(window_) + layout().packet(1, 0, 1);
    return std::all_of(begin, begin + kBytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  static constexpr uint64_t kBytes = 4096;

 private:
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

  void put(size_t offset, const Bytes16& word) {
    std::memcpy(aligned(window_) + offset, &word, sizeof(word));
  }

  std::vector<std::byte> window_, peers_window_, tensor_;
  std::unique_ptr<Workspace> workspace_;
  uint32_t failed_ = 0;
  AbortWord abort_flag_[3] = {};
  WaitReport report_{};
  CountingMemory memory_;
};

}  // namespace tokenyard::test
