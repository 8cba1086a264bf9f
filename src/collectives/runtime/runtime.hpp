/// The parts that make one process a rank of a job. Groups and operations under way share it;
/// `close` ends them all.
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

  /// Waits until messages sent by this rank have been received, then leaves. If time runs out it
  /// leaves too, then throws PeerTimeout naming a rank that has not received one.
  void leave(std::chrono::nanoseconds timeout, const char* when);
  /// Leaves as above, within a second, and joins the threads.
  void close();

  const CollectivesOptions options;
  Engine& engine() { return *engine_; }
  ProgressThread& progress_thread() { return *progress_thread_; }
  control::Control& control() { return *control_; }

  Recovery& recovery() { return *recovery_; }

  /// Advances the call at every change until it is done. Throws the error that ended the engine,
  /// QuorumLost or PeerTimeout after the time, or whatever the interrupt throws.
  void await(Recovery::Call& call, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

  std::shared_ptr<void> on_change(std::function<void()> call);
  CollectivesCounters counters() const;

 private:
  void publish_changes();
  /// Fills lost slots under OnFailure::retry, where no caller asks for it.
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
