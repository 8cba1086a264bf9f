/// The interface between the words' host bodies and an executor of kernels on a CPU. Each word
/// becomes one call of it. simt/ implements it, and device/ does not depend on how.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tokenyard {
enum class Order : uint8_t;
enum class Scope : uint8_t;
enum class Fence : uint8_t;
}  // namespace tokenyard

namespace tokenyard::host_body {

/// The place of a word's call: an address in the kernel's code, resolved to file and line only for
/// reports.
using CodeAddress = const void*;

enum class Modify : uint8_t {
  add,
  max_unsigned,
  max_signed,
  min_unsigned,
  min_signed,
  bit_or,
  bit_and,
  exchange
};

/// The operation of a warp word, which distinguishes lanes that meet at different words.
enum class WarpWord : uint8_t {
  sync,
  shuffle,
  ballot,
  match,
  sum,
  min,
  max,
  bit_or,
  once,
  multiply_add,
  load_transposed
};

/// One lane's input to a collective operation of its warp, and the result.
struct WarpMeeting {
  WarpWord word;
  uint32_t lanes;                    ///< mask of participants, as this lane passed it
  uint64_t value = 0;                ///< this lane's input
  const uint64_t* values = nullptr;  ///< [32] all lanes' inputs, valid until this lane's next meet
  CodeAddress where = nullptr;
};

struct Identity {
  uint32_t thread, threads, block, blocks;
};

class Machine {
 public:
  virtual ~Machine() = default;

  virtual const Identity& identity() = 0;
  virtual void* shared_memory() = 0;  ///< the block's: the kernel's Shared struct, then the tail
  virtual void* shared_tail() = 0;

  /// Blocks until all lanes of `meeting.lanes` have arrived. Orders memory for WarpWord::sync and
  /// WarpWord::once only.
  virtual void meet(WarpMeeting& meeting) = 0;
  /// Arrives at the block's barrier `id` of `threads` threads and, if `wait`, waits there.
  virtual void barrier(uint32_t id, uint32_t threads, bool wait, CodeAddress where) = 0;
  /// Waits at barrier 0 with a vote, for block::any.
  virtual bool barrier_any(bool predicate, CodeAddress where) = 0;

  // Memory accesses of 1, 2, 4, 8 or 16 bytes, to multiples of their size as on a GPU.
  /// Ends the kernel, since an access is to no such address.
  [[noreturn]] virtual void misaligned(const void* at, uint32_t bytes, CodeAddress where) = 0;
  virtual void load(const void* from, void* value, uint32_t bytes, Order order, Scope scope,
                    CodeAddress where) = 0;
  virtual void store(void* to, const void* value, uint32_t bytes, Order order, Scope scope,
                     CodeAddress where) = 0;
  /// Stores the old value in `old`, unless `old` is null (a reduction).
  virtual void modify(Modify what, void* at, const void* operand, void* old, uint32_t bytes,
                      Order order, Scope scope, CodeAddress where) = 0;
  virtual void compare_exchange(void* at, const void* expected, const void* desired, void* old,
                                uint32_t bytes, Order order, Scope scope, CodeAddress where) = 0;
  virtual void fence(Fence kind, Scope scope, CodeAddress where) = 0;

  // Bulk copies and their completions. `completion` points to a Completion in shared memory, 8
  // bytes that the implementation may use as it likes.
  virtual void completion_init(void* completion, uint32_t arrivals, CodeAddress where) = 0;
  virtual void completion_arrive(void* completion, uint32_t expected_bytes, CodeAddress where) = 0;
  virtual bool completion_done(void* completion, uint32_t parity, CodeAddress where) = 0;
  virtual void fence_async(CodeAddress where) = 0;
  virtual void bulk_load(void* to_shared, const void* from, uint32_t bytes, void* completion,
                         CodeAddress where) = 0;
  virtual void bulk_store(void* to, const void* from_shared, uint32_t bytes, CodeAddress where) = 0;
  virtual void bulk_commit(CodeAddress where) = 0;
  virtual void bulk_wait(uint32_t groups, bool sources_only, CodeAddress where) = 0;

  /// Returns whether the mutant of this place runs (mutated.hpp).
  virtual bool mutated(CodeAddress where) = 0;

  /// Marks the calling thread as working on `part` from here on.
  virtual void begin_part(uint32_t part) = 0;

  virtual uint64_t now_ns() = 0;
  virtual uint64_t cycles() = 0;
  virtual void nap(uint32_t ns) = 0;
  /// Lets other threads run after a poll of a wait_until has failed. The arguments are for a
  /// deadlock report.
  virtual void spin(uint32_t phase, uint32_t rank, uint64_t expected, uint64_t seen,
                    CodeAddress where) = 0;
};

/// Returns the machine that runs the calling fiber. Throws InternalError outside kernels.
Machine& machine();
void set_machine(Machine* machine);

}  // namespace tokenyard::host_body
