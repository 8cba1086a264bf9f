#include "collectives/engine/progress_thread.hpp"

#include <algorithm>

namespace tokenyard::collectives {

namespace {

using namespace std::chrono_literals;

/// Interval at which sleeping threads check for an interrupt.
constexpr std::chrono::nanoseconds nap_max = 50ms;
/// Interval at which the progress thread looks for operations that no caller waits for, and the
/// number of looks after the last start.
constexpr std::chrono::nanoseconds watch_nap = 300us;
constexpr int watch_naps = 64;

}  // namespace

/// At the wheel for as long as it lives.
class ProgressThread::Wheel {
 public:
  Wheel(ProgressThread& progress_thread, std::unique_lock<std::mutex>& lock)
      : progress_thread_(progress_thread) {
    progress_thread_.driven_ = true;
    progress_thread_.driven_by_ = std::this_thread::get_id();
    lock.unlock();
  }
  ~Wheel() {
    {
      const std::lock_guard lock(progress_thread_.mutex_);
      progress_thread_.driven_ = false;
    }
    progress_thread_.changed_.notify_all();
  }
  Wheel(const Wheel&) = delete;
  Wheel& operator=(const Wheel&) = delete;

 private:
  ProgressThread& progress_thread_;
};

ProgressThread::ProgressThread(Engine& engine, Transport& transport, ProgressThreadOptions options)
    : engine_(engine), transport_(transport), options_(std::move(options)) {
  engine_.on_news([this] { news(); });
}

void ProgressThread::start() {
  if (started_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (stop_ || thread_.joinable()) return;
  thread_ = std::thread([this] { run(); });
  started_.store(true, std::memory_order_release);
}

void ProgressThread::stop() {
  {
    // A stopped ProgressThread leaves the transport alone: by the destructor it may be gone.
    const std::lock_guard lock(mutex_);
    wake();
    stop_ = true;
  }
  for_thread_.notify_all();
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  // A waiting thread may still be on its way out of the transport. If this very thread was
  // interrupted at the wheel, it is not in the transport.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !driven_ || driven_by_ == std::this_thread::get_id(); });
}

void ProgressThread::wake() {
  if (!stop_) transport_.wake();
}

void ProgressThread::launched() {
  start();
  launches_.fetch_add(1);  // ordered before the check for sleepers
  if (thread_asleep_.load()) {
    const std::lock_guard lock(mutex_);
    for_thread_.notify_all();
  }
  if (asleep_at_wheel_.load()) {
    const std::lock_guard lock(mutex_);
    wake();
  }
}

void ProgressThread::news() {
  {
    const std::lock_guard lock(mutex_);
    ++news_;
    wake();
  }
  changed_.notify_all();
  for_thread_.notify_all();
}

void ProgressThread::on_news(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  on_news_ = std::move(call);
}

void ProgressThread::wait_for_news(std::chrono::nanoseconds at_most) {
  {
    std::unique_lock lock(mutex_);
    const uint64_t seen = news_;
    changed_.wait_for(lock, std::min(at_most, nap_max), [&] { return stop_ || news_ != seen; });
  }
  options_.interrupt();
}

bool ProgressThread::wait(const Outcome& outcome, std::optional<Instant> until) {
  Clock::time_point last_moved = Clock::now();
  while (!outcome.done()) {
    std::unique_lock lock(mutex_);
    if (!driven_ && !stop_) {
      const Wheel wheel(*this, lock);
      while (!outcome.done() && !(until && engine_.now() >= *until)) step(last_moved, until, true);
    } else {
      passengers_.fetch_add(1);  // ordered before the wake: the thread gives up the wheel
      if (asleep_at_wheel_.load()) wake();
      changed_.wait_for(lock, nap_max, [&] { return outcome.done() || (!driven_ && !stop_); });
      passengers_.fetch_sub(1);
      lock.unlock();
      options_.interrupt();
    }
    if (until && engine_.now() >= *until) return outcome.done();
  }
  return true;
}

void ProgressThread::step(Clock::time_point& last_moved, std::optional<Instant> until,
                          bool interruptible) {
  const bool moved = engine_.poll(true);
  if (moved && passengers_.load() > 0) {
    const std::lock_guard lock(mutex_);  // or they could miss it between check and sleep
    changed_.notify_all();
  }
  const Clock::time_point now = Clock::now();
  if (moved) {
    last_moved = now;
    return;
  }
  // On a crowded host, the awaited rank may need this very core, so sleeping at once is best.
  // Yielding would not do: the scheduler makes a yielding thread wait for all others' turns, but
  // runs a woken thread at once.
  if (!crowded_.load(std::memory_order_relaxed) && now - last_moved < options_.spin) return;

  std::chrono::nanoseconds nap = nap_max;
  if (until) nap = std::min<std::chrono::nanoseconds>(nap, *until - engine_.now());
  if (const std::optional<Instant> next = engine_.next_deadline()) {
    nap = std::min<std::chrono::nanoseconds>(nap, *next - engine_.now());
  }
  asleep_at_wheel_ = true;
  const uint64_t launches = launches_.load();
  // Looks once more for what came before peers began to ring.
  if (!engine_.prepare_to_sleep() && launches == launches_.load()) {
    transport_.sleep(std::max(nap, std::chrono::nanoseconds(0)));
  }
  asleep_at_wheel_ = false;
  last_moved = Clock::now();
  if (interruptible) options_.interrupt();
}

void ProgressThread::drive_unattended() {
  Clock::time_point last_moved = Clock::now();
  while (passengers_.load() == 0 && engine_.busy()) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    step(last_moved, std::nullopt, false);
  }
}

void ProgressThread::run() {
  std::unique_lock lock(mutex_);
  uint64_t seen = 0;
  int quiet_naps = 0;
  while (!stop_) {
    if (news_published_ != news_) {
      news_published_ = news_;
      const std::function<void()> post = on_news_;
      lock.unlock();
      engine_.announce();
      post();
      lock.lock();
      continue;
    }
    lock.unlock();
    const bool closing = engine_.closing();
    lock.lock();
    if (quiet_naps < watch_naps) {
      for_thread_.wait_for(lock, watch_nap);
      const uint64_t launches = launches_.load();
      quiet_naps = launches == seen ? quiet_naps + 1 : 0;
      seen = launches;
      if (driven_ || passengers_.load() > 0 || stop_) continue;
      lock.unlock();
      const bool unattended = engine_.busy();
      lock.lock();
      if (!unattended || driven_ || stop_) continue;
      quiet_naps = 0;
      const Wheel wheel(*this, lock);
      drive_unattended();
    } else {
      thread_asleep_ = true;  // ordered before the check for started operations
      const auto awake = [&] {
        return stop_ || news_published_ != news_ || launches_.load() != seen;
      };
      bool woken = true;
      if (closing) {
        woken = for_thread_.wait_for(lock, nap_max, awake);
      } else {
        for_thread_.wait(lock, awake);
      }
      thread_asleep_ = false;
      if (woken) {
        quiet_naps = 0;
      } else if (!driven_) {
        // No caller waits for the end of a group, and no peer rings for it.
        const Wheel wheel(*this, lock);
        while (engine_.poll(true)) continue;
      }
    }
    if (!lock.owns_lock()) lock.lock();
  }
}

}  // namespace tokenyard::collectives
