/// A World, and all that is made upon it, is used by one thread at a time.
#pragma once

#include <atomic>

#include "forks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Says no to a second caller of a World, where it would not end well.
class Callers {
 public:
  /// A call, from its begin to its end.
  class Turn {
   public:
    /// Throws InvalidArgument where another thread is in a call, and in a fork of the process that
    /// made the World.
    explicit Turn(Callers& callers) : callers_(callers) {
      callers.check_process();
      if (callers.busy_.exchange(true, std::memory_order_acquire))
        throw InvalidArgument("world", "one call at a time, of whatever is made upon it",
                              "one while another thread's is under way");
    }
    ~Turn() { callers_.busy_.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Callers& callers_;
  };

  /// For calls that others may be under way beside. Throws InvalidArgument in a fork of the process
  /// that made the World.
  void check_process() const {
    if (forks_.since())
      throw InvalidArgument("world", "a call in the process that made it", "one in a fork of that");
  }

 private:
  const Forks forks_;
  std::atomic<bool> busy_ = false;
};

}  // namespace tokenyard::python
