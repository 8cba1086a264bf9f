/// Code that hardly ever runs, out of the way of code that does: for kernels of a hundred waits,
/// which would else be made of what happens when one takes long, with their own paths in pieces.
#pragma once

#include "device/wait.hpp"

#if TOKENYARD_DEVICE_BODY
/// A function that is there once, and called. Its arguments go by value: what it read through a
/// pointer would be no register of its caller's.
#define DEVICE_APART inline __device__ __noinline__
#else
#define DEVICE_APART DEVICE
#endif

namespace tokenyard {

/// The same pointer, to be kept in a register. A compiler that sees how an address is made makes it
/// again at every use, and for one in shared memory asks the hardware each time.
template <class T>
DEVICE T* settled(T* pointer);
/// The same of a number that a compiler would work out again.
DEVICE uint32_t settled(uint32_t number);

/// A word in the block's shared memory, whose address is settled.
class SettledWord {
 public:
  DEVICE explicit SettledWord(const uint32_t& word);
  /// Relaxed.
  DEVICE uint32_t load() const;

 private:
#if TOKENYARD_DEVICE_BODY
  uint32_t address_;
#else
  const uint32_t* address_;
#endif
};

/// When a wait polls the host's abort flag, which lies across PCIe.
enum class Listening : uint32_t {
  as_deadlines_do,  ///< see Deadline::give_up
  by_count,         ///< by polls alone: of waits that seldom sleep, in a call of many
};

/// A Deadline whose waits share the code that reads the clock and the abort flag.
template <Listening listening>
class SharedDeadline {
 public:
  DEVICE explicit SharedDeadline(const WaitContext& wait_context, uint64_t start_ns = now_ns())
      : wait_context_(wait_context), start_ns_(start_ns) {}
  DEVICE explicit operator Deadline() const { return Deadline(wait_context_, start_ns_); }
  DEVICE bool failed() const { return Deadline(*this).failed(); }
  DEVICE void fail(Failure failure, const Awaited& what) const;
  /// As Deadline::give_up.
  DEVICE bool give_up(uint32_t& polls, const Awaited& what) const;

 private:
  const WaitContext& wait_context_;
  uint64_t start_ns_;
};
using DeadlineApart = SharedDeadline<Listening::by_count>;
using CallDeadline = SharedDeadline<Listening::as_deadlines_do>;

template <Listening listening, class Condition>
DEVICE bool wait_until(const SharedDeadline<listening>& deadline, Awaited& what,
                       Condition condition);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/apart.hpp"
#else
#include "device/host/apart.hpp"
#endif
