/// Handles Ctrl-C while the library waits without the interpreter lock.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

namespace tokenyard::python {

/// For WorldOptions::interrupt: lets Python run its signal handlers, and throws what they raise.
/// Python runs these on its main thread only, so on any other thread it returns at once; the main
/// thread ends a launch on threads by World::cancel.
class Interrupt {
 public:
  /// Needs the interpreter lock.
  Interrupt();
  void operator()() const;

 private:
  unsigned long main_thread_;
  /// Time of the next check. Waits call far more often than a key is pressed, so the interpreter
  /// lock is taken at most every 20 ms.
  std::shared_ptr<std::atomic<std::chrono::steady_clock::duration>> next_look_;
};

}  // namespace tokenyard::python
