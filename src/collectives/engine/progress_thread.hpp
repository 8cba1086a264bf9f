/// Polls an engine: in a thread that waits for an operation or, if none does, in a thread of its
/// own.
///
/// One thread at a time is at the wheel. It polls as long as anything moves and a little longer,
/// then sleeps in the transport until a peer rings. Other waiting threads are passengers: they
/// sleep until their operation is done or the wheel is free. So a small operation runs in its
/// caller from beginning to end, and no thread is woken for it.
///
/// The progress thread proper begins with the first operation. It does not compete for the wheel.
/// While operations are being started it checks periodically for operations that no caller waits
/// for, and drives those; otherwise it sleeps until one is started.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "collectives/engine/engine.hpp"

namespace tokenyard::collectives {

struct ProgressThreadOptions {
  /// Idle time before a thread sleeps. Waking costs about half as much again.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  /// Called periodically by waiting threads; may throw.
  std::function<void()> interrupt = [] {};
};

class ProgressThread {
 public:
  /// Both arguments must live until `stop` has returned.
  ProgressThread(Engine& engine, Transport& transport, ProgressThreadOptions options);
  ~ProgressThread() { stop(); }

  /// Starts the thread; only the first call does. `launched` calls it.
  void start();
  /// Announces a started operation, so that some thread drives it.
  void launched();
  /// Waits until the outcome is done, or until `until`. Returns whether it is done. Throws what
  /// `interrupt` throws.
  bool wait(const Outcome& outcome, std::optional<Instant> until);
  /// Sleeps until there is news (a verdict, the end), at most `at_most`. Throws what `interrupt`
  /// throws.
  void wait_for_news(std::chrono::nanoseconds at_most);

  /// Called by the engine after a change that no peer rings for.
  void news();
  /// Sets a function that the progress thread calls after news, once it has been started.
  void on_news(std::function<void()> call);
  /// Whether ranks outnumber cores on this host. Then a spinning thread would hold a core that
  /// others need, so none spins.
  void set_crowded(bool crowded) { crowded_ = crowded; }

  /// Ends the thread, after the end of all operations. No thread uses the transport afterwards.
  void stop();

 private:
  class Wheel;
  using Clock = std::chrono::steady_clock;

  /// Wakes the thread that sleeps in the transport. Under the lock, so that `stop` cannot
  /// intervene.
  void wake();
  void run();
  void drive_unattended();
  /// Polls once; sleeps if nothing has moved for long. The caller keeps `last_moved`.
  void step(Clock::time_point& last_moved, std::optional<Instant> until, bool interruptible);

  Engine& engine_;
  Transport& transport_;
  const ProgressThreadOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for passengers and waits for news
  std::condition_variable for_thread_;
  bool driven_ = false;  // a thread is at the wheel
  std::thread::id driven_by_;
  bool stop_ = false;
  uint64_t news_ = 0, news_published_ = 0;
  std::function<void()> on_news_ = [] {};

  std::atomic<int> passengers_ = 0;
  std::atomic<bool> asleep_at_wheel_ = false;
  std::atomic<uint64_t> launches_ = 0;
  std::atomic<bool> thread_asleep_ = false;
  std::atomic<bool> crowded_ = false;
  std::atomic<bool> started_ = false;
  std::thread thread_;
};

}  // namespace tokenyard::collectives
