/// Ctrl-C while the library waits without the interpreter lock.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

namespace tokenyard::python {

/// For WorldOptions::interrupt: lets Python run its signal handlers, and throws what they raise.
/// Python runs them on its main thread only, so any other thread returns at once; a launch on
/// threads is ended from the main thread by World::cancel.
class Interrupt {
 public:
  /// Call with the interpreter lock held.
  Interrupt();
  void operator()() const;

 private:
  unsigned long main_thread_;
  /// Waits spin far more often than a person presses a key: the lock is taken every 20 ms at most.
  std::shared_ptr<std::atomic<std::chrono::steady_clock::duration>> next_look_;
};

}  // namespace tokenyard::python
