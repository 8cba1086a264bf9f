/// The choice of the thread that runs next.
#pragma once

#include <cstddef>
#include <span>

#include "simt/memory.hpp"

namespace tokenyard::simt {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// Returns an index into `runnable`, which is not empty. The order of `runnable` has no meaning
  /// and changes from call to call, but is a function of the calls so far.
  virtual size_t pick(std::span<const ThreadName* const> runnable) = 0;
  /// Returns whether others may run before the running thread's next access.
  virtual bool preempt(const ThreadName& running) = 0;
  /// Returns whether threads that wait for something to happen may poll now. Something has
  /// happened, and `runnable` threads can run in any case.
  virtual bool wakes(size_t runnable) {
    (void)runnable;
    return true;
  }
  /// Returns whether memory should take a step of its own now.
  virtual bool step_memory() = 0;
};

/// Runs all threads in turn, without preemption; for runs outside the simulator.
class RoundRobin : public Schedule {
 public:
  size_t pick(std::span<const ThreadName* const> runnable) override {
    if (next_ >= runnable.size()) next_ = 0;
    return next_++;
  }
  bool preempt(const ThreadName&) override { return false; }
  /// Once per round: polls after every store of every lane would be most of the work.
  bool wakes(size_t runnable) override { return next_ >= runnable; }
  bool step_memory() override { return false; }

 private:
  size_t next_ = 0;
};

}  // namespace tokenyard::simt
