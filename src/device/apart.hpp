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

/// A Deadline whose waits share the code that looks at the clock and at the alarm.
class DeadlineApart {
 public:
  DEVICE DeadlineApart(const Patience& patience, uint64_t start_ns)
      : patience_(patience), start_ns_(start_ns) {}
  DEVICE explicit operator Deadline() const { return Deadline(patience_, start_ns_); }
  DEVICE void fail(Failure failure, const Awaited& what) const;
  /// For wait_until. `polls`: how often the condition has been found false.
  DEVICE bool give_up(uint32_t polls, const Awaited& what) const;

 private:
  const Patience& patience_;
  uint64_t start_ns_;
};

template <class Condition>
DEVICE bool wait_until(const DeadlineApart& deadline, Awaited& what, Condition condition);

/// A Deadline of a call of its own, whose waits share that code, and listen to the alarm as a
/// Deadline's do. Small calls pass through each instruction once, and fetch it from afar: what is
/// between those that they need takes them as long as work.
class CallDeadline {
 public:
  DEVICE explicit CallDeadline(const Patience& patience)
      : patience_(patience), start_ns_(now_ns()) {}
  DEVICE explicit operator Deadline() const { return Deadline(patience_, start_ns_); }
  DEVICE bool failed() const { return Deadline(*this).failed(); }
  DEVICE void fail(Failure failure, const Awaited& what) const;
  DEVICE bool give_up(uint32_t polls, const Awaited& what) const;

 private:
  const Patience& patience_;
  uint64_t start_ns_;
};

template <class Condition>
DEVICE bool wait_until(const CallDeadline& deadline, Awaited& what, Condition condition);

}  // namespace tokenyard

#if TOKENYARD_DEVICE_BODY
#include "device/cuda/apart.hpp"
#else
#include "device/host/apart.hpp"
#endif
