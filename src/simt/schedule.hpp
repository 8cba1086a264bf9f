/// Who runs next.
#pragma once

#include <cstddef>
#include <span>

#include "simt/memory.hpp"

namespace tokenyard::simt {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// An index into `runnable`, which is not empty. Its order means nothing and changes from call to
  /// call, but for the same history it is the same.
  virtual size_t pick(std::span<const ThreadName* const> runnable) = 0;
  /// Whether the thread that just made an access should let others run before it goes on.
  virtual bool preempt(const ThreadName& running) = 0;
  /// Something has happened, and `runnable` threads can go on without it: whether those who wait
  /// for something to happen may look now.
  virtual bool wakes(size_t runnable) {
    (void)runnable;
    return true;
  }
  /// Whether memory should take a step of its own now.
  virtual bool step_memory() = 0;
};

/// Everybody in turn, nobody interrupted: for real runs.
class RoundRobin : public Schedule {
 public:
  size_t pick(std::span<const ThreadName* const> runnable) override {
    if (next_ >= runnable.size()) next_ = 0;
    return next_++;
  }
  bool preempt(const ThreadName&) override { return false; }
  /// Once a round: a look after every store of every lane would be most of the work.
  bool wakes(size_t runnable) override { return next_ >= runnable; }
  bool step_memory() override { return false; }

 private:
  size_t next_ = 0;
};

}  // namespace tokenyard::simt
