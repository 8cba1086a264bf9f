/// A World of many ranks of which rank 0 runs its kernels, and the calls of that rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bench/across_hosts/stand_in.hpp"
#include "bench/across_hosts/wire.hpp"
#include "bench/harness/device_memory.hpp"
#include "device/accelerator.hpp"
#include "expert_parallel/internode/kernels/combine.hpp"
#include "expert_parallel/internode/kernels/dispatch.hpp"
#include "fabric/arena.hpp"
#include "fabric/network/network.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::bench {

/// A call of rank 0 as it is launched.
struct RankLaunch {
  const KernelEntry* kernel;
  LaunchShape shape;
  Stream stream;
  const void* params;
};

/// Another accelerator, but for what a world around one rank changes.
class RankAccelerator final : public Accelerator {
 public:
  using OnLaunch = std::function<void(const RankLaunch&)>;

  RankAccelerator(Accelerator& inner, AcceleratorKind kind, Capacity capacity)
      : inner_(inner), kind_(kind), capacity_(capacity) {}

  /// Called in place of each launch of an exchange between hosts.
  OnLaunch on_launch;

  AcceleratorKind kind() const override { return kind_; }
  std::string name() const override { return inner_.name(); }
  Capacity capacity() const override { return capacity_; }
  int device_index() const override { return inner_.device_index(); }
  void prepare(const KernelEntry& kernel) override { inner_.prepare(kernel); }
  void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
              const void* params) override;
  void* allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void free(void* memory) override { inner_.free(memory); }
  void* allocate_shared(size_t bytes) override { return inner_.allocate_shared(bytes); }
  void free_shared(void* memory) override { inner_.free_shared(memory); }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    inner_.copy(to, from, bytes, stream);
  }
  void fill(void* to, int byte, size_t bytes, Stream stream) override {
    inner_.fill(to, byte, bytes, stream);
  }
  Stream make_stream() override { return inner_.make_stream(); }
  void free_stream(Stream stream) override { inner_.free_stream(stream); }
  bool captures(Stream stream) override { return inner_.captures(stream); }
  Event record(Stream stream) override { return inner_.record(stream); }
  Event mark(Stream stream) override { return inner_.mark(stream); }
  void wait(Stream stream, Event event) override { inner_.wait(stream, event); }
  bool done(Event event) override { return inner_.done(event); }
  void free_event(Event event) override { inner_.free_event(event); }
  float elapsed_ms(Event begin, Event end) override { return inner_.elapsed_ms(begin, end); }
  void drain() override { inner_.drain(); }
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override {
    return inner_.wait_until(until, condition);
  }
  uint32_t read_flag(const uint32_t* flag) override { return inner_.read_flag(flag); }
  void write_flag(uint32_t* flag, uint32_t value) override { inner_.write_flag(flag, value); }

 private:
  Accelerator& inner_;
  const AcceleratorKind kind_;
  const Capacity capacity_;
};

/// The accelerators, arenas and queues of all ranks. `ranks()[0]` is the real one.
class OneRankWorld {
 public:
  /// `device`: "cuda" or "host". `pinned`: the network reaches memory of the host, and no arena.
  OneRankWorld(const Scene& scene, const std::string& device, bool pinned, size_t arena_bytes);
  ~OneRankWorld();

  const std::vector<std::unique_ptr<World>>& worlds() const { return worlds_; }
  RankAccelerator& rank() { return *ranks_[0]; }
  Accelerator& device() { return accelerator_; }
  bool on_gpu() const { return accelerator_.kind() == AcceleratorKind::gpu; }
  QueuePair& pair(uint32_t peer, uint32_t queue) { return pairs_[peer * kQueues + queue]; }

  /// Copies from the device, and waits.
  template <class T>
  std::vector<T> fetch(const void* from, size_t count) {
    return memory_.download<T>(from, count, Stream{});
  }
  DeviceMemory& memory() { return memory_; }
  void upload(void* to, const void* from, size_t bytes);

 private:
  static constexpr uint32_t kQueues = 4;  ///< per peer

  std::vector<std::unique_ptr<World>> device_world_;  ///< has the accelerator
  Accelerator& accelerator_;
  DeviceMemory memory_;
  std::vector<std::unique_ptr<Accelerator>> hosts_;  ///< of ranks on other hosts
  std::vector<std::shared_ptr<RankAccelerator>> ranks_;
  QueuePair* pairs_ = nullptr;
  std::vector<std::unique_ptr<World>> worlds_;
};

/// Has moves done by the card's blocks on a GPU; else at once, by the thread that issues them.
class Card final : public Mover {
 public:
  Card(OneRankWorld& world, uint32_t groups, uint32_t blocks);
  ~Card() override;

  /// Begins a call.
  void begin();
  /// Ends the groups.
  void end();
  void issue(uint32_t group, const Move& move) override;
  uint32_t done(uint32_t group) const override;

 private:
  OneRankWorld& world_;
  const uint32_t groups_, blocks_;
  Stream stream_{};
  CardCommand* commands_ = nullptr;  ///< [groups][kCardCommands]
  uint32_t* done_ = nullptr;         ///< [groups]
  uint32_t* ended_ = nullptr;        ///< [groups] device
  std::vector<uint32_t> issued_;
};

}  // namespace tokenyard::bench
