/// Whether this process is a fork of the one that made an object.
///
/// A fork has a copy of every object and none of its threads: an end that waits for a thread would
/// wait for ever, and memory, sockets and pipes are still the parent's. So what was made before a
/// fork is left alone after it.
#pragma once

#include <cstdint>

namespace tokenyard::python {

/// Which process this is; cheaper than asking the system.
class Forks {
 public:
  Forks() : then_(so_far()) {}
  /// Whether there has been a fork on the way from the process that made this to this one.
  bool since() const { return so_far() != then_; }

  /// Begins to count. To be called once, before any object is made.
  static void count();

 private:
  static uint64_t so_far();
  uint64_t then_;
};

}  // namespace tokenyard::python
