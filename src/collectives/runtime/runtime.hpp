/// All that makes one process a rank of a job, put together. Groups and operations under way hold
/// it; `close` ends it for them all.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "collectives/engine/engine.hpp"
#include "collectives/engine/progress_thread.hpp"
#include "collectives/engine/recovery.hpp"
#include "collectives/transports/wire_transport.hpp"
#include "control/control.hpp"
#include "tokenyard/collectives.hpp"

namespace tokenyard::collectives {

enum class Entrance { found, join, alone };

class Runtime {
 public:
  Runtime(const CollectivesOptions& options, Entrance entrance);
  ~Runtime() { close(); }

  /// Waits until messages that were sent have been received, then leaves. Throws PeerTimeout, after
  /// leaving, naming a rank that has not received one.
  void leave(std::chrono::nanoseconds timeout, const char* when);
  /// As `leave`, for a moment at most; joins the threads.
  void close();

  const CollectivesOptions options;
  Engine& engine() { return *engine_; }
  ProgressThread& progress_thread() { return *progress_thread_; }
  control::Control& control() { return *control_; }

  Recovery& recovery() { return *recovery_; }

  /// Until the call is done; looks after every piece of news. Throws what ended the engine,
  /// QuorumLost or PeerTimeout after the time, and what the interrupt throws.
  void await(Recovery::Call& call, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  std::shared_ptr<void> on_change(std::function<void()> call);
  CollectivesCounters counters() const;

 private:
  void publish_changes();
  /// Nobody calls `replace` under OnFailure::retry.
  void admit_replacements(const View& view);

  std::unique_ptr<control::Control> control_;
  std::shared_ptr<WireTransport> transport_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ProgressThread> progress_thread_;
  std::unique_ptr<Recovery> recovery_;
  uint64_t refused_by_wire_ = 0;

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<std::function<void()>>> listeners_;
  Epoch epoch_published_ = 0;
};

}  // namespace tokenyard::collectives
