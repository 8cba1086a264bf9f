/// Two ranks whose threads access the memory model one at a time, in an order fixed by the test.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulation/model_memory.hpp"

namespace tokenyard::simulation {

using simt::CodeAddress;
using simt::ThreadName;

/// Returns a code address that stands for a line of a kernel; findings name it.
inline CodeAddress line(uintptr_t number) {
  return reinterpret_cast<CodeAddress>(number);
}

/// Two ranks with two blocks of two threads, an arena per rank and shared memory per block.
class ModelMemoryTest : public testing::Test {
 protected:
  struct alignas(128) Memory {
    std::array<uint32_t, 64> words{};
  };

  void SetUp() override { start({.delivery = Delivery::newest_first, .stale_per_1024 = 0}); }

  void start(const Policy& policy) {
    memory_ = std::make_unique<ModelMemory>(
        ModelMemory::Options{.policy = policy, .random = Random(7), .trace = &trace_});
    names_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      arenas_[rank] = {};
      memory_->add_region("arena", &arenas_[rank], sizeof(Memory), rank);
      hosts_[rank] = memory_->add_host(rank, "host");
      for (uint32_t thread = 0; thread < 4; ++thread)
        names_.push_back({rank * 4 + thread, rank, 0, thread / 2, thread % 2});
    }
    for (uint32_t rank = 0; rank < 2; ++rank) begin(rank);
  }
  void begin(uint32_t rank) {
    memory_->grid_begins(rank, 0, std::span(names_).subspan(rank * 4, 4));
    for (uint32_t block = 0; block < 2; ++block)
      memory_->block_begins(name(rank, block, 0), &shared_[rank * 2 + block], sizeof(Memory));
  }
  void end(uint32_t rank) {
    for (uint32_t thread = 0; thread < 4; ++thread) memory_->thread_ends(names_[rank * 4 + thread]);
    memory_->grid_ends(rank, 0);
  }

  const ThreadName& name(uint32_t rank, uint32_t block, uint32_t thread) const {
    return names_[rank * 4 + block * 2 + thread];
  }
  uint32_t* word(uint32_t rank, uint32_t index) { return &arenas_[rank].words[index]; }
  uint32_t* shared(uint32_t rank, uint32_t block, uint32_t index) {
    return &shared_[rank * 2 + block].words[index];
  }

  void store(const ThreadName& me, uint32_t* to, uint32_t value, Order order = Order::weak,
             Scope scope = Scope::sys) {
    memory_->store(me, to, &value, 4, order, scope, line(1));
  }
  uint32_t load(const ThreadName& me, uint32_t* from, Order order = Order::weak,
                Scope scope = Scope::sys) {
    uint32_t value = 0;
    memory_->load(me, from, &value, 4, order, scope, line(2));
    return value;
  }
  uint32_t plain_load(const ThreadName& me, uint32_t* from) {
    memory_->plain_access(me, from, 4, false, line(3));
    return *from;
  }
  void plain_store(const ThreadName& me, uint32_t* to, uint32_t value) {
    memory_->plain_access(me, to, 4, true, line(4));
    *to = value;
  }
  /// The writer stores 5 and signals; the reader reads the signal, then the value. Fences are
  /// optional on both sides.
  uint32_t hand_over(std::optional<Fence> before_telling, Order telling, Order hearing,
                     std::optional<Fence> after_hearing) {
    store(writer(), word(1, 0), 5);
    if (before_telling) memory_->fence(writer(), *before_telling, Scope::sys, line(5));
    store(writer(), word(1, 8), 1, telling);
    load(reader(), word(1, 8), hearing);
    if (after_hearing) memory_->fence(reader(), *after_hearing, Scope::sys, line(5));
    return plain_load(reader(), word(1, 0));
  }
  void meet(uint32_t rank, uint32_t block) {
    const std::array<const ThreadName*, 2> both{&name(rank, block, 0), &name(rank, block, 1)};
    memory_->synchronise(both, both);
  }

  size_t findings() const { return memory_->findings().list().size(); }
  std::string found() const {
    std::string all;
    for (const Finding& finding : memory_->findings().list())
      all += finding.text([](CodeAddress where) {
        return std::to_string(reinterpret_cast<uintptr_t>(where));
      }) + "\n";
    return all;
  }

  const ThreadName& writer() { return name(0, 0, 0); }
  const ThreadName& reader() { return name(1, 0, 0); }

  Trace trace_;
  std::array<Memory, 2> arenas_;
  std::array<Memory, 4> shared_;
  std::vector<ThreadName> names_;
  std::array<ModelMemory::Host, 2> hosts_{};
  std::unique_ptr<ModelMemory> memory_;
};

}  // namespace tokenyard::simulation
