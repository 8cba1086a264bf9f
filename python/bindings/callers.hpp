/// A World, and all that is made upon it, is used by one thread at a time.
#pragma once

#include <atomic>
#include <memory>

#include "forks.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::python {

/// Says no to a second caller of a World, where it would not end well.
class Callers {
 public:
  /// A call, from its begin to its end.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<Callers> callers) : callers_(std::move(callers)) {}
    ~Turn() {
      if (callers_) callers_->busy_.store(false, std::memory_order_release);
    }
    Turn(Turn&&) noexcept = default;
    Turn& operator=(Turn&&) = delete;

   private:
    std::shared_ptr<Callers> callers_;
  };

  /// Throws InvalidArgument where another thread is in a call, and in a fork of the process that
  /// made the World.
  static Turn turn(const std::shared_ptr<Callers>& callers) {
    if (callers->forks_.since())
      throw InvalidArgument("world", "a call in the process that made it", "one in a fork of that");
    if (callers->busy_.exchange(true, std::memory_order_acquire))
      throw InvalidArgument("world", "one call at a time, of whatever is made upon it",
                            "one while another thread's is under way");
    return Turn(callers);
  }

 private:
  const Forks forks_;
  std::atomic<bool> busy_ = false;
};

}  // namespace tokenyard::python
