/// Where a process sleeps until something happens on one of its descriptors.
///
/// Edges, not levels: whoever polls reads the sockets directly and may leave bytes lie, for an
/// operation that has not begun; only what is new since the last sleep ends the next one. The
/// kernel keeps the edges while nobody sleeps, so none is missed, and no handler runs on a thread
/// that holds no lock.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/file_descriptor.hpp"

namespace tokenyard::net {

class Poller {
 public:
  Poller();
  /// Until the descriptor is closed. Throws OsError.
  void watch_arrivals(int descriptor);
  void watch_arrivals_and_room(int descriptor);
  /// One thread at a time. A time that is up is rounded up to milliseconds.
  void sleep(std::chrono::nanoseconds at_most);
  /// From any thread. Ends a sleep that has not begun yet, too.
  void wake();

 private:
  void watch(int descriptor, uint32_t events);

  FileDescriptor set_;
  FileDescriptor waker_;
};

}  // namespace tokenyard::net
