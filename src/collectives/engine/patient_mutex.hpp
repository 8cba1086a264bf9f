/// A mutex for one who takes it again and again, and others who want it now and then: the first
/// leaves room for the others before it takes it.
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

  /// For who polls. The count orders nothing: a missed waiter waits for one more turn.
  void lock_patiently() {
    while (waiting_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    mutex_.lock();
  }

 private:
  std::mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

}  // namespace tokenyard::collectives
