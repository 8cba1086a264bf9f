/// Who polls an engine: whoever waits for an operation, and if nobody does a thread of its own.
///
/// One thread at a time is at the wheel. It polls as long as things move, a little longer, and then
/// sleeps in the transport until a peer rings. Others that wait are passengers: they sleep until
/// their operation is done or the wheel is free. So a small operation runs in its caller from
/// beginning to end, and no thread is woken for it.
///
/// The thread does not take part in that. It looks every now and then, while operations are being
/// started, whether there is one that nobody waits for, and drives those; when none are started any
/// more it sleeps until one is.
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
  /// How long nothing may move before a thread sleeps. Waking costs about half as much again.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  /// Called now and then by those who wait; may throw.
  std::function<void()> interrupt = [] {};
};

class ProgressThread {
 public:
  /// Both must be there until `stop` has returned.
  ProgressThread(Engine& engine, Transport& transport, ProgressThreadOptions options);
  ~ProgressThread() { stop(); }

  /// An operation has been started: somebody will see to it.
  void launched();
  /// Until it is done, or `until`. Throws what `interrupt` does. False: it is not done.
  bool wait(const Outcome& outcome, std::optional<Instant> until);
  /// Sleeps until there is news (a verdict, the end), at most so long. Throws what `interrupt`
  /// does.
  void wait_for_news(std::chrono::nanoseconds at_most);

  /// From the engine: something has changed that no peer rings for.
  void news();
  /// Called by the thread after every piece of news.
  void on_news(std::function<void()> call);
  /// Ranks of this host outnumber its cores: others need the core that a spinning thread holds, so
  /// nobody spins.
  void set_crowded(bool crowded) { crowded_ = crowded; }

  /// After the end of all operations: nobody is in the transport from now on, nor will be.
  void stop();

 private:
  class Wheel;
  using Clock = std::chrono::steady_clock;

  /// Whoever sleeps in the transport. Under the lock, so that it is not stopped meanwhile.
  void wake();
  void run();
  void drive_unattended();
  /// One look; sleeps if nothing has moved for long. `last_moved` is kept by the caller.
  void step(Clock::time_point& last_moved, std::optional<Instant> until, bool interruptible);

  Engine& engine_;
  Transport& transport_;
  const ProgressThreadOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for passengers, and those who wait for news
  std::condition_variable for_thread_;
  bool driven_ = false;  // somebody is at the wheel
  std::thread::id driven_by_;
  bool stop_ = false;
  uint64_t news_ = 0, news_published_ = 0;
  std::function<void()> on_news_ = [] {};

  std::atomic<int> passengers_ = 0;
  std::atomic<bool> asleep_at_wheel_ = false;
  std::atomic<uint64_t> launches_ = 0;
  std::atomic<bool> thread_asleep_ = false;
  std::atomic<bool> crowded_ = false;
  std::thread thread_;
};

}  // namespace tokenyard::collectives
