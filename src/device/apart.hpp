/// Moves rarely executed code out of line. A kernel with a hundred waits would otherwise consist
/// mostly of their slow paths, with its own hot path scattered between them.
#pragma once

#include "device/wait.hpp"

#if TOKENYARD_DEVICE_BODY
/// Declares a function that is compiled once and called. Arguments go by value: a variable that it
/// read through a pointer could not stay in a register of the caller.
#define TOKENYARD_DEVICE_APART inline __device__ __noinline__
#else
#define TOKENYARD_DEVICE_APART TOKENYARD_DEVICE
#endif

namespace tokenyard {

/// Returns `pointer`, opaque to the compiler, so that it stays in a register instead of being
/// recomputed at every use; a shared-memory address costs an extra conversion each time.
template <class T>
TOKENYARD_DEVICE T* settled(T* pointer);
/// Returns `number`, opaque to the compiler, which would otherwise recompute it at every use.
TOKENYARD_DEVICE uint32_t settled(uint32_t number);

/// A word in the block's shared memory, with its address kept in a register.
class SettledWord {
 public:
  TOKENYARD_DEVICE explicit SettledWord(const uint32_t& word);
  /// Loads the word: relaxed, block scope.
  TOKENYARD_DEVICE uint32_t load() const;

 private:
#if TOKENYARD_DEVICE_BODY
  uint32_t address_;
#else
  const uint32_t* address_;
#endif
};

/// How a wait decides when to poll the host's abort flag, a read across PCIe.
enum class Listening : uint32_t {
  as_deadlines_do,  ///< see Deadline::give_up
  by_count,         ///< by the number of polls alone: for calls with many waits that rarely sleep
};

/// A Deadline whose waits share one copy of the code that reads the clock and the abort flag.
template <Listening listening>
class SharedDeadline {
 public:
  TOKENYARD_DEVICE explicit SharedDeadline(const WaitContext& wait_context,
                                           uint64_t start_ns = now_ns())
      : wait_context_(wait_context), start_ns_(start_ns) {}
  TOKENYARD_DEVICE explicit operator Deadline() const { return Deadline(wait_context_, start_ns_); }
  TOKENYARD_DEVICE bool failed() const { return Deadline(*this).failed(); }
  TOKENYARD_DEVICE void fail(Failure failure, const Awaited& what) const;
  /// See Deadline::give_up.
  TOKENYARD_DEVICE bool give_up(uint32_t& polls, const Awaited& what) const;

 private:
  const WaitContext& wait_context_;
  uint64_t start_ns_;
};
using DeadlineApart = SharedDeadline<Listening::by_count>;
using CallDeadline = SharedDeadline<Listening::as_deadlines_do>;

template <Listening listening, class Condition>
TOKENYARD_DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                                 Condition condition);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/apart.hpp"
#else
#include "device/host/apart.hpp"
#endif
