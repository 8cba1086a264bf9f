/// How memory behaves under the executor: really (direct_memory.hpp, atomics of the CPU, for
/// threads and processes) or as a GPU may behave at its worst (simulation/, by seed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/host/machine.hpp"
#include "device/memory.hpp"

namespace tokenyard::simt {

using host_body::CodeAddress;
using host_body::Modify;

/// A simulated CUDA thread. Dense indices, so that clocks can be arrays; reused once a grid has
/// ended.
struct ThreadName {
  uint32_t id;    ///< dense over everything that runs under one executor
  uint32_t rank;  ///< whose grid it belongs to
  uint32_t grid;  ///< which launch
  uint32_t block, thread;
};

/// The executor calls this for the fiber that is running (`me`). Accesses that must wait
/// (bulk_wait) return false until they can go on: the executor lets others run and asks again.
class Memory {
 public:
  virtual ~Memory() = default;

  // Lives of threads. Everything before a launch happens before every access of the grid;
  // everything in the grid happens before whatever its host does after the grid has ended.
  virtual void grid_begins(uint32_t rank, uint32_t grid, std::span<const ThreadName> threads) = 0;
  /// A block's shared memory, before its first thread runs; it dies with the last thread.
  virtual void block_begins(const ThreadName& first, void* shared, size_t bytes) {
    (void)first, (void)shared, (void)bytes;
  }
  virtual void thread_ends(const ThreadName& me) = 0;
  virtual void grid_ends(uint32_t rank, uint32_t grid) = 0;
  /// A barrier among `members` (of one block) has completed: it orders their accesses. A member
  /// that only arrived is ordered before, not after.
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

  /// A plain C++ access of kernel code, reported by compiler instrumentation (checked builds only).
  virtual void plain_access(const ThreadName& me, const void* address, uint32_t bytes, bool write,
                            CodeAddress where) = 0;

  /// Asked by each thread that comes to a block barrier: true lets it pass at once, as if the
  /// barrier were not written there (a mutation that the race checker must catch).
  virtual bool skip_barrier(const ThreadName& me, CodeAddress where) {
    (void)me, (void)where;
    return false;
  }

  /// One step of whatever happens by itself (late stores, copies under way). False if nothing is
  /// pending. The executor calls it at random moments.
  virtual bool step() = 0;
  /// The same when every thread waits: what was held back until then must now happen.
  virtual bool step_when_idle() { return step(); }
  /// Changes whenever something happened that a waiting thread could notice.
  virtual uint64_t progress() const = 0;
  /// Whether everybody finds in a word what lies at its address. Then the executor wakes a thread
  /// that waits for what it has looked at to change only once it has, or now and then.
  virtual bool is_plain() const { return false; }
};

}  // namespace tokenyard::simt
