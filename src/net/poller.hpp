/// Sleeps until something happens on one of a process's descriptors.
///
/// The poller is edge-triggered. Callers read sockets directly, and may leave bytes unread for an
/// operation that has not begun; only news since the last sleep ends the next one. The kernel keeps
/// edges while nobody sleeps, so none is lost, and no handler ever runs on a thread that does not
/// hold the engine's lock.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

class Poller {
 public:
  Poller();
  /// Watches until the descriptor is closed. Throws OsError.
  void watch_arrivals(int descriptor);
  void watch_arrivals_and_room(int descriptor);
  /// Sleeps in one thread at a time; the time is rounded up to milliseconds.
  void sleep(std::chrono::nanoseconds at_most);
  /// Ends the current sleep, or the next if none has begun. Callable from any thread.
  void wake();

 private:
  void watch(int descriptor, uint32_t events);

  FileDescriptor set_;
  FileDescriptor waker_;
};

}  // namespace tokenyard::net
