/// Runs the kernels of all ranks at once, on fibers, in virtual time: every word of a kernel costs
/// what the hardware takes for it, and the thread whose time is least runs next. Memory is this
/// process's own.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bench/across_hosts_model/events.hpp"
#include "bench/across_hosts_model/wire.hpp"
#include "device/accelerator.hpp"
#include "device/host/machine.hpp"
#include "simt/fiber.hpp"

namespace tokenyard::bench {

/// One rank's launch.
struct Launched {
  const KernelEntry* kernel;
  LaunchShape shape;
  std::vector<std::byte> params;
};

/// Memory whose marks stand for plain accesses to a row, which no word tells.
struct RowMarks {
  const std::byte *written = nullptr, *read = nullptr, *end = nullptr;
  uint32_t stride = 0;  ///< bytes per link: marks of what is written, then of what is read
};

struct Block;

struct Watched {
  const std::byte* word;
  std::array<uint64_t, 2> seen;
  uint32_t bytes;
};

/// Memory of rows that kernels access piece by piece, as one rank addresses it: disjoint ranges in
/// ascending order.
using PieceRanges = std::vector<std::pair<const std::byte*, const std::byte*>>;

/// Facts of a call, beside its kernels.
struct CallFacts {
  Lengths lengths;
  std::vector<RowMarks> marks;
  std::vector<double> rates;  ///< [ranks] share of a link's rate; empty: all of it
  /// [ranks] two words each that a GPU's waits read at few of their polls.
  std::vector<std::pair<const void*, const void*>> free_words;
  std::vector<PieceRanges> pieces;  ///< [ranks], or none
};

/// A thread of a kernel.
struct Lane {
  host_body::Identity identity{};
  Block* block = nullptr;
  std::unique_ptr<simt::Fiber> fiber;
  Time clock = 0;
  Time copied_read = 0, copied = 0;  ///< when its bulk stores have read and written all
  std::array<uint64_t, 32> met{};
  const char* waits = nullptr;
  Time loaded = 0;  ///< when its last relaxed load ended; 0: its last load was none
  /// Words that its wait has read since it polled last, and their values.
  std::vector<Watched> watched;
  uint64_t sleep = 0;  ///< counts its sleeps; a wake-up is for one of them
  bool sleeps = false;
  uint32_t phase = 0;
  Time polled = 0;                ///< when its wait polled last
  std::array<Time, 32> waited{};  ///< by phase of the exchange between hosts
  std::array<Time, 32> waited_until{};
};

/// How long a role's warps waited for something.
struct WaitOfRole {
  uint32_t warp = 0, phase = 0;  ///< warp: of the block; phase: of internode::Phase
  double most_us = 0, mean_us = 0, until_us = 0;
};

struct Meeting {
  host_body::WarpWord word;
  uint32_t lanes = 0, arrived = 0;
  Time latest = 0;
  std::array<uint64_t, 32> values{};
};

struct Warp {
  std::vector<Meeting> meetings;
  Time stored = 0;  ///< when it last marked slots as read
};

struct BarrierOfBlock {
  uint32_t arrived = 0;
  bool any = false;
  Time latest = 0;
  std::vector<Lane*> waiting;
};

struct Block {
  uint32_t rank = 0;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;
  size_t tail = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<Warp> warps;
  std::array<BarrierOfBlock, 16> barriers;
  Time store_free = 0, load_free = 0;
  Time stored = 0;  ///< how long its stores were busy
  std::vector<uint8_t> any;
};

class Machine final : public host_body::Machine {
 public:
  Machine(const Costs& costs, Wire& wire) : costs_(costs), wire_(wire), stacks_(40 << 10) {}

  /// Runs a call: each rank's kernels one after the other. Returns when each rank's last one ended.
  std::vector<Time> run(const std::vector<std::vector<Launched>>& launches, const CallFacts& facts);
  /// Wakes the threads that wait for a word to change.
  void note_change(const void* word, Time at);
  /// Share of the last call in which the stores of a rank's multiprocessors were busy.
  double busy_storing(uint32_t rank) const;
  /// Returns the waits of a rank in the last call, by warp of a block.
  std::vector<WaitOfRole> waits(uint32_t rank) const;

  const host_body::Identity& identity() override { return lane_->identity; }
  void* shared_memory() override { return lane_->block->shared; }
  void* shared_tail() override { return lane_->block->shared + lane_->block->tail; }
  void meet(host_body::WarpMeeting& meeting) override;
  void barrier(uint32_t id, uint32_t threads, bool wait, host_body::CodeAddress) override;
  bool barrier_any(bool predicate, host_body::CodeAddress) override;
  [[noreturn]] void misaligned(const void* at, uint32_t bytes, host_body::CodeAddress) override;
  void load(const void* from, void* value, uint32_t bytes, Order order, Scope scope,
            host_body::CodeAddress where) override;
  void store(void* to, const void* value, uint32_t bytes, Order order, Scope scope,
             host_body::CodeAddress where) override;
  void modify(host_body::Modify what, void* at, const void* operand, void* old, uint32_t bytes,
              Order order, Scope scope, host_body::CodeAddress where) override;
  void compare_exchange(void* at, const void* expected, const void* desired, void* old,
                        uint32_t bytes, Order order, Scope scope,
                        host_body::CodeAddress where) override;
  void fence(Fence kind, Scope scope, host_body::CodeAddress) override;
  void completion_init(void* completion, uint32_t arrivals, host_body::CodeAddress) override;
  void completion_arrive(void* completion, uint32_t expected_bytes,
                         host_body::CodeAddress) override;
  bool completion_done(void* completion, uint32_t parity, host_body::CodeAddress) override;
  void fence_async(host_body::CodeAddress) override { spend(costs_.instruction); }
  void bulk_load(void* to_shared, const void* from, uint32_t bytes, void* completion,
                 host_body::CodeAddress) override;
  void bulk_store(void* to, const void* from_shared, uint32_t bytes,
                  host_body::CodeAddress) override;
  void bulk_commit(host_body::CodeAddress) override {}
  void bulk_wait(uint32_t groups, bool sources_only, host_body::CodeAddress) override;
  bool mutated(host_body::CodeAddress) override { return false; }
  void begin_part(uint32_t) override {}
  uint64_t now_ns() override { return lane_->clock / 1000; }
  uint64_t cycles() override { return lane_->clock / 500; }
  void nap(uint32_t ns) override;
  void spin(uint32_t phase, uint32_t rank, uint64_t expected, uint64_t seen,
            host_body::CodeAddress) override;

 private:
  struct Completion {
    uint32_t arrivals = 0, pending = 0, parity = 0;
    int64_t bytes = 0;
    Time due = 0, ended = 0;
  };

  void spend(Time time) { lane_->clock += time; }
  /// Lets all threads run whose time is less.
  void catch_up();
  void watch(const void* word, uint32_t bytes);
  void sleep();
  void wake(Lane& lane, Time at);
  void block_lane(const char* why);
  void start(uint32_t rank, Time at);
  bool is_far(const void* at, uint32_t& rank) const;
  /// Returns whether a thread's address is a piece of a row.
  bool is_piece(const void* at) const;
  void end_phase(Completion& completion, const void* at);
  void note_marks(const void* to);
  Time over_nvlink(uint32_t from, uint32_t to, double bytes);
  void deadlock() const;

  const Costs& costs_;
  Wire& wire_;
  simt::StackPool stacks_;
  Events events_;
  CallFacts facts_;
  const std::vector<std::vector<Launched>>* launches_ = nullptr;
  std::vector<uint32_t> kernel_;  ///< [ranks] which of its kernels runs
  std::vector<std::pair<const std::byte*, uint32_t>> arenas_;  ///< by address, with their ranks
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Time> nvlink_out_, nvlink_in_;
  std::unordered_map<void*, Completion> completions_;
  std::unordered_map<const std::byte*, std::vector<std::pair<Lane*, uint64_t>>> watchers_;
  Lane* lane_ = nullptr;
  uint64_t running_ = 0;
  std::vector<uint32_t> left_;  ///< [ranks] threads
  std::vector<Time> ended_;
};

}  // namespace tokenyard::bench
