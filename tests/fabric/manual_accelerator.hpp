/// An accelerator without kernels, whose events and clock the test controls. For code that needs
/// only memory, flags and waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "device/accelerator.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

class ManualAccelerator : public Accelerator {
 public:
  AcceleratorKind kind() const override { return AcceleratorKind::host; }
  std::string name() const override { return "manual"; }
  Capacity capacity() const override { return {1, 65536}; }
  void launch(const KernelEntry&, const LaunchShape&, Stream, const void*) override {
    throw Unsupported("a kernel", "this accelerator runs none");
  }
  void* allocate(size_t bytes) override { return std::calloc(1, bytes); }
  void free(void* memory) override { std::free(memory); }
  void* allocate_shared(size_t bytes) override { return std::calloc(1, bytes); }
  void free_shared(void* memory) override { std::free(memory); }
  void copy(void* to, const void* from, size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }
  void fill(void* to, int byte, size_t bytes, Stream) override { std::memset(to, byte, bytes); }
  Stream make_stream() override { return Stream(++streams_); }
  void free_stream(Stream) override {}
  Event record(Stream stream) override {
    const Event event{++events_};
    live_.insert(event.native);
    if (busy_.contains(stream.native)) pending_.insert(event.native);
    return event;
  }
  void wait(Stream, Event) override {}
  bool done(Event event) override {
    ++asked_;
    return !pending_.contains(event.native);
  }
  void free_event(Event event) override { live_.erase(event.native); }
  float elapsed_ms(Event, Event) override { return 0; }
  bool wait_until(TimePoint until, const std::function<bool()>& condition) override {
    while (!condition()) {
      if (now() >= until) return false;
      if (while_waiting) while_waiting();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  TimePoint now() const override {
    const auto skipped = std::chrono::nanoseconds(skipped_ns_.load());
    return frozen_.value_or(Clock::now()) + skipped;
  }
  uint32_t read_flag(const uint32_t* flag) override {
    return std::atomic_ref(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
  }
  void write_flag(uint32_t* flag, uint32_t value) override {
    std::atomic_ref(*flag).store(value, std::memory_order_release);
  }

  /// Keeps events recorded on the stream from now on pending until `finish`.
  void keep_busy(Stream stream) { busy_.insert(stream.native); }
  /// Completes all work enqueued on any stream.
  void finish() {
    busy_.clear();
    pending_.clear();
  }
  size_t live_events() const { return live_.size(); }
  size_t asked() const { return asked_; }  ///< number of calls to `done`

  /// Advances the clock, so that deadlines pass without a wait. Any thread may call it.
  void skip(std::chrono::nanoseconds time) { skipped_ns_ += time.count(); }
  /// Stops the clock except for `skip`, so that no deadline passes however slow the machine is.
  void freeze() { frozen_ = Clock::now(); }

  /// Called by a wait each time its condition is false.
  std::function<void()> while_waiting;

 private:
  std::atomic<int64_t> skipped_ns_ = 0;
  std::optional<TimePoint> frozen_;
  uintptr_t streams_ = 0, events_ = 0;
  std::set<uintptr_t> busy_, pending_, live_;
  std::atomic<size_t> asked_ = 0;
};

}  // namespace tokenyard
