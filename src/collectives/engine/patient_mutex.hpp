/// A mutex for one thread that takes it over and over, and others that want it occasionally: the
/// first lets waiting threads go first.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

namespace tokenyard::collectives {

class PatientMutex {
 public:
  void lock() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

  /// For the polling thread. The count orders nothing: a waiter that is missed waits one more turn.
  void lock_patiently() {
    while (waiting_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    mutex_.lock();
  }

 private:
  std::mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

}  // namespace tokenyard::collectives
