/// Enforces that one thread at a time uses a World and the objects made on it.
#pragma once

#include <atomic>

#include "forks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Rejects a second concurrent caller of a World.
class Callers {
 public:
  /// One call, from begin to end.
  class Turn {
   public:
    /// Throws InvalidArgument if another thread is in a call, or in a fork of the process that made
    /// the World.
    explicit Turn(Callers& callers) : callers_(callers) {
      callers.check_process();
      if (callers.busy_.exchange(true, std::memory_order_acquire))
        throw InvalidArgument("world", "one call at a time, of it and of objects made on it",
                              "a call while another thread is in one");
    }
    ~Turn() { callers_.busy_.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Callers& callers_;
  };

  /// Throws InvalidArgument in a fork of the process that made the World. For calls that may run
  /// beside others.
  void check_process() const {
    if (forks_.since())
      throw InvalidArgument("world", "a call in the process that made it", "a call in its fork");
  }

 private:
  const Forks forks_;
  std::atomic<bool> busy_ = false;
};

}  // namespace tokenyard::python
