/// The result of an operation under way; finishes once, for all its holders.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace tokenyard::collectives {

class Outcome {
 public:
  virtual ~Outcome() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Returns the error; null while the operation is under way or if it succeeded.
  std::exception_ptr error() const { return done() ? error_ : nullptr; }

  /// `finish` is called by the code that runs the operation, under its lock; then `announce`,
  /// without.
  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);  // publishes the error and the results
  }
  void announce() {
    std::vector<std::function<void()>> calls;
    {
      const std::lock_guard lock(mutex_);
      announced_ = true;
      calls.swap(calls_);
    }
    for (const auto& call : calls) call();
  }
  void when_done(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      if (!announced_) {
        calls_.push_back(std::move(call));
        return;
      }
    }
    call();
  }

  /// These are documented at Work.
  virtual uint32_t source() const { return 0; }
  virtual std::string choice() const { return {}; }
  virtual std::vector<uint32_t> missing_ranks() const { return {}; }

 private:
  std::atomic<bool> done_ = false;
  std::exception_ptr error_;
  std::mutex mutex_;
  bool announced_ = false;
  std::vector<std::function<void()>> calls_;
};

}  // namespace tokenyard::collectives
