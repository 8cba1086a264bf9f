/// The memory under the executor: the CPU's own, with its atomics, for threads and processes
/// (direct_memory.hpp), or one as bad as a GPU's may be, determined by a seed (simulation/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/host/machine.hpp"
#include "device/memory.hpp"

namespace tokenyard::simt {

using host_body::CodeAddress;
using host_body::Modify;

/// A simulated CUDA thread. Ids are dense, so that clocks can be arrays, and are reused once a grid
/// has ended.
struct ThreadName {
  uint32_t id;    ///< dense over all threads under one executor
  uint32_t rank;  ///< that launched its grid
  uint32_t grid;  ///< number of the launch
  uint32_t block, thread;
};

/// The executor calls these functions for the running fiber, `me`. One that must wait (bulk_wait)
/// returns false until it can continue; the executor then runs others and calls it again.
class Memory {
 public:
  virtual ~Memory() = default;

  // Lifetimes of threads. Everything before a launch happens before every access of the grid;
  // every access of the grid happens before everything that its host does after the grid's end.
  virtual void grid_begins(uint32_t rank, uint32_t grid, std::span<const ThreadName> threads) = 0;
  /// Registers a block's shared memory before its first thread runs. It lives as long as the grid.
  virtual void block_begins(const ThreadName& first, void* shared, size_t bytes) {
    (void)first, (void)shared, (void)bytes;
  }
  virtual void thread_ends(const ThreadName& me) = 0;
  virtual void grid_ends(uint32_t rank, uint32_t grid) = 0;
  /// A barrier of one block has completed: accesses before it by the threads in `arrived` happen
  /// before accesses after it by those in `waited`, a subset of them.
  virtual void synchronise(std::span<const ThreadName* const> arrived,
                           std::span<const ThreadName* const> waited) = 0;

  virtual void load(const ThreadName& me, const void* from, void* value, uint32_t bytes,
                    Order order, Scope scope, CodeAddress where) = 0;
  virtual void store(const ThreadName& me, void* to, const void* value, uint32_t bytes, Order order,
                     Scope scope, CodeAddress where) = 0;
  virtual void modify(const ThreadName& me, Modify what, void* at, const void* operand, void* old,
                      uint32_t bytes, Order order, Scope scope, CodeAddress where) = 0;
  virtual void compare_exchange(const ThreadName& me, void* at, const void* expected,
                                const void* desired, void* old, uint32_t bytes, Order order,
                                Scope scope, CodeAddress where) = 0;
  virtual void fence(const ThreadName& me, Fence kind, Scope scope, CodeAddress where) = 0;

  virtual void completion_init(const ThreadName& me, void* completion, uint32_t arrivals,
                               CodeAddress where) = 0;
  virtual void completion_arrive(const ThreadName& me, void* completion, uint32_t expected_bytes,
                                 CodeAddress where) = 0;
  virtual bool completion_done(const ThreadName& me, void* completion, uint32_t parity,
                               CodeAddress where) = 0;
  virtual void fence_async(const ThreadName& me, CodeAddress where) = 0;
  virtual void bulk_load(const ThreadName& me, void* to_shared, const void* from, uint32_t bytes,
                         void* completion, CodeAddress where) = 0;
  virtual void bulk_store(const ThreadName& me, void* to, const void* from_shared, uint32_t bytes,
                          CodeAddress where) = 0;
  virtual void bulk_commit(const ThreadName& me, CodeAddress where) = 0;
  virtual bool bulk_wait(const ThreadName& me, uint32_t groups, bool sources_only,
                         CodeAddress where) = 0;

  /// Records a plain C++ access by a checked kernel; called by compiler instrumentation.
  virtual void plain_access(const ThreadName& me, const void* address, uint32_t bytes, bool write,
                            CodeAddress where) = 0;

  /// Returns whether a thread that arrives at a block barrier passes at once, as if the barrier
  /// were not in the source: a mutation, which the race detector must notice.
  virtual bool skip_barrier(const ThreadName& me, CodeAddress where) {
    (void)me, (void)where;
    return false;
  }

  /// Returns whether the mutant of this place runs (device/mutated.hpp).
  virtual bool mutated(const ThreadName& me, CodeAddress where) {
    (void)me, (void)where;
    return false;
  }

  /// Advances one pending effect (a late store, a copy in flight). Returns false if none advanced.
  /// The executor calls it at moments that the schedule chooses.
  virtual bool step() = 0;
  /// Takes a step when every thread waits: effects that were held back must now happen.
  virtual bool step_when_idle() { return step(); }
  /// Returns a number that changes whenever something happens that a waiting thread could notice.
  virtual uint64_t progress() const = 0;
  /// Returns whether every load returns what real memory holds. The executor can then compare the
  /// words that a thread waits for, and wakes it when they have changed, or once in a while.
  virtual bool is_plain() const { return false; }
};

}  // namespace tokenyard::simt
