/// Detects whether this process is a fork of the one that made an object.
///
/// A fork has a copy of every object but none of its threads: a destructor that joins a thread
/// would hang, and memory, sockets and pipes still belong to the parent. So objects made before a
/// fork are leaked after it.
#pragma once

#include <cstdint>

namespace tokenyard::python {

/// Identifies the process that made an object; cheaper than getpid().
class Forks {
 public:
  Forks() : then_(so_far()) {}
  /// Returns whether this process is a fork, direct or not, of the process that made this object.
  bool since() const { return so_far() != then_; }

  /// Starts to count. Call once, before any object is made.
  static void count();

 private:
  static uint64_t so_far();
  uint64_t then_;
};

}  // namespace tokenyard::python
