/// Windows and sources for the network's contract. A way to work off queues needs to provide only a
/// world for which `network_of` returns it.
#pragma once

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/network_kernels.hpp"
#include "fabric/promise.hpp"
#include "fabric/world_access.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::testing {

inline const std::array<std::string, 4> kNetworkPhases = {"network: post", "network: arrive",
                                                          "network: flush", "network: credit"};

/// Memory of a rank's kernels that is registered as long as this lives: of its own, or a block of
/// the arena where the network reaches nothing else.
class RegisteredMemory {
 public:
  RegisteredMemory(World& world, size_t bytes)
      : gpu_(accelerator_of(world)),
        network_(*network_of(world)),
        is_pinned_(!network_.reaches_arena()) {
    if (!network_.registers_memory()) {
      block_ = arena_of(world).allocate(bytes, Stream{});
      memory_ = block_.data();
      key_ = network_.arena_key(world.rank());
      capacity_ = arena_of(world).capacity();
      // As memory of its own would be.
      gpu_.fill(memory_, 0, bytes, Stream{});
      return;
    }
    memory_ =
        static_cast<std::byte*>(is_pinned_ ? gpu_.allocate_shared(bytes) : gpu_.allocate(bytes));
    key_ = network_.register_memory(memory_, bytes);
    capacity_ = bytes;
  }
  ~RegisteredMemory() {
    if (block_) {
      block_.quarantine();  // A request that has not ended may still read it.
      return;
    }
    try {
      deregister();
    } catch (const Error&) {
      // A rank that died inside; the simulator reports an access that comes later all the same.
    }
    if (is_pinned_)
      gpu_.free_shared(memory_);
    else
      gpu_.free(memory_);
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  void deregister() {
    if (block_) return;
    if (const MemoryKey key = std::exchange(key_, 0)) network_.deregister(key);
  }
  std::byte* data() const { return memory_; }
  MemoryKey key() const { return key_; }
  /// Returns the place of its first byte, for peers.
  NetworkTarget target() const { return {.key = key_, .offset = block_ ? block_.offset() : 0}; }
  /// Returns the bytes of the region that it is, or lies in, and where that begins.
  size_t region_bytes() const { return capacity_; }
  const std::byte* region() const { return memory_ - target().offset; }

 private:
  Accelerator& gpu_;
  Network& network_;
  const bool is_pinned_;  ///< the network does not reach memory of kernels alone
  ArenaBlock block_;      ///< empty: `memory_` is registered
  std::byte* memory_ = nullptr;
  MemoryKey key_ = 0;
  size_t capacity_ = 0;
};

/// One rank's windows and sources, with everybody's keys. Collective.
class NetworkFixture {
 public:
  struct Options {
    std::chrono::nanoseconds timeout{};  ///< of each kernel's waits; 0: the world's
    bool in_arena = true;                ///< where the window lies: there, or in registered memory
  };
  NetworkFixture(World& world, const Options& options)
      : world(world),
        gpu(accelerator_of(world)),
        network(require_network(world)),
        timeout_(options.timeout.count() != 0 ? options.timeout : world.timeout()),
        record_(gpu, abort_flag_of(world)),
        scratch_(world, sizeof(NetworkScratch)) {
    const bool in_arena = options.in_arena && network.reaches_arena();
    if (in_arena) {
      block_ = arena_of(world).allocate(sizeof(NetworkWindow), Stream{});
      window_ = block_.data();
    } else {
      registered_ = std::make_unique<RegisteredMemory>(world, sizeof(NetworkWindow));
      window_ = registered_->data();
    }
    gpu.fill(window_, 0, sizeof(NetworkWindow), Stream{});
    NetworkTarget mine;
    if (in_arena)
      mine = {.key = network.arena_key(world.rank()), .offset = block_.offset()};
    else
      mine = registered_->target();
    targets = gather(world, mine, "windows");
    window_table_ = allocate<NetworkTarget>(targets.size());
    gpu.copy(window_table_, targets.data(), targets.size() * sizeof(NetworkTarget), Stream{});
    wrong_ = allocate<uint32_t>(1);
    finish();
    world.barrier("windows are clean");
  }

  template <class T>
  T* allocate(size_t count) {
    kept_.emplace_back(gpu.allocate(count * sizeof(T)), [this](void* memory) { gpu.free(memory); });
    return static_cast<T*>(kept_.back().get());
  }
  NetworkWindow* window() const { return reinterpret_cast<NetworkWindow*>(window_); }
  RegisteredMemory& scratch() { return scratch_; }
  RegisteredMemory* registered() { return registered_.get(); }

  NetworkParams params() const {
    return {.wait_context = record_.wait_context(timeout_),
            .queues = network.queues(),
            .windows = window_table_,
            .mine = window(),
            .scratch = reinterpret_cast<NetworkScratch*>(scratch_.data()),
            .scratch_key = scratch_.key(),
            .rank = world.rank(),
            .ranks = world.size(),
            .epoch = 0,
            .ring_slots = 1,
            .ring_messages = 0,
            .wrong = wrong_};
  }
  WaitContext wait_context() const { return record_.wait_context(timeout_); }

  void finish() {
    const Event end = gpu.record(Stream{});
    promise(gpu.wait_until(gpu.now() + timeout_ + std::chrono::seconds(60),
                           [&] { return gpu.done(end); }),
            "the stream's work did not end");
    gpu.free_event(end);
  }
  void drain() { promise(network.drain(gpu.now() + timeout_), "requests did not take effect"); }
  /// Runs a kernel to its end, and raises what went wrong.
  template <class Params>
  void run(const Kernel<Params>& kernel, const LaunchShape& shape, const Params& params) {
    launch(gpu, kernel, shape, Stream{}, params);
    finish();
    record_.check(kNetworkPhases);
  }
  template <class T>
  T read(const T* from) {
    T value{};
    gpu.copy(&value, from, sizeof value, Stream{});
    finish();
    return value;
  }
  void require_right() {
    const auto wrong = read(wrong_);
    promise(wrong == 0, fmt::format("{} bytes were not visible although their signal was", wrong));
  }
  /// Returns the rank of the next host that corresponds to `rank`, and to no other.
  uint32_t far_peer(uint32_t rank) const {
    return (rank + world.size() / world.topology().hosts) % world.size();
  }
  uint32_t far_peer() const { return far_peer(world.rank()); }

  World& world;
  Accelerator& gpu;
  Network& network;
  std::vector<NetworkTarget> targets;  ///< [ranks] windows

 private:
  static Network& require_network(World& world) {
    promise(network_of(world) != nullptr, "a world with far ranks has no network");
    return *network_of(world);
  }

  std::chrono::nanoseconds timeout_;
  ErrorRecord record_;
  RegisteredMemory scratch_;
  ArenaBlock block_;
  std::unique_ptr<RegisteredMemory> registered_;
  std::byte* window_ = nullptr;
  std::vector<std::shared_ptr<void>> kept_;
  NetworkTarget* window_table_ = nullptr;
  uint32_t* wrong_ = nullptr;
};

}  // namespace tokenyard::testing
