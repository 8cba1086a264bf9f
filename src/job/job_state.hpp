/// The parts that make one process a rank of a job: one control plane, the ranks as worlds see
/// them, and the engine of collectives over its transport. Groups and operations under way share
/// it; `close` ends them all.
///
/// A part that nobody uses costs little: the engine and its transport have no thread, and no memory
/// is shared, until the first operation; an arena comes with a world.
///
/// Invariant: the control plane's calls reach the engine first, then the ranks, then listeners. So
/// whoever hears that an epoch has begun finds that its operations can be called.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/file_descriptor.hpp"
#include "collectives/engine/engine.hpp"
#include "collectives/engine/progress_thread.hpp"
#include "collectives/engine/recovery.hpp"
#include "collectives/transports/wire_transport.hpp"
#include "control/control.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/world_access.hpp"
#include "job/process_ranks.hpp"
#include "tokenyard/collectives.hpp"
#include "tokenyard/job.hpp"

namespace tokenyard {

/// Choices of the library's own parts.
struct JobTerms {
  enum class Entrance : uint8_t { found, join, alone };
  Entrance entrance = Entrance::found;
  /// Whether the witness's register is memory that the processes share, which they get with their
  /// first world (`share_witness`): they are on one host, and it outlives any of them. If not, the
  /// store keeps it.
  bool witness_in_memory = false;
  bool sole_host = false;  ///< control::ControlOptions::sole_host
  /// Limit of the goodbye; 0: the job's timeout.
  std::chrono::nanoseconds farewell{0};
};

/// Returns the options of the control plane of such a job.
control::ControlOptions control_options(const JobOptions& options, const JobTerms& terms);

class Job::State final : public control::Participant {
 public:
  State(const JobOptions& options, const JobTerms& terms);
  ~State() override { close(); }

  const JobOptions options;
  /// Returns where others reach this rank.
  const std::string& address() const { return address_; }
  collectives::Engine& engine() { return *engine_; }
  collectives::ProgressThread& progress_thread() { return *progress_thread_; }
  collectives::Recovery& recovery() { return *recovery_; }
  control::Control& control() { return *control_; }
  ProcessRanks& ranks() { return ranks_; }
  const Recoveries& recoveries() const { return recoveries_; }
  /// Waits until the members have agreed to go on without those that this rank knows to be gone.
  /// Returns whether there were any. Throws as `await`.
  bool await_verdict_on_gone(std::chrono::steady_clock::time_point until);
  /// Notes that a call of this rank has put the changes of the membership so far behind it.
  void note_recovery();

  /// Waits until messages sent by this rank have been received, then leaves. If time runs out it
  /// leaves too, then throws PeerTimeout naming a rank that has not received one.
  void leave(std::chrono::nanoseconds timeout, const char* when);
  /// Leaves as above, within a second, joins the threads and closes the sockets. A second call does
  /// nothing.
  void close();
  /// Throws the error that ended this rank's membership, if something has.
  void check_ended() const;

  /// Advances the call at every change until it is done. Throws the error that ended the engine,
  /// QuorumLost or PeerTimeout after the time, or whatever the interrupt throws.
  void await(collectives::Recovery::Call& call,
             std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  /// Gives the witness to all ranks of a world that is being made, if the job keeps it in memory.
  /// Collective among them. Throws what collective_step throws.
  void share_witness(Bootstrap& bootstrap, TimePoint until);
  /// Returns the memory of the witness's register; none before `share_witness`.
  const FileDescriptor& witness_memory() const { return witness_memory_; }

  std::shared_ptr<void> on_change(std::function<void()> call);
  uint64_t refused() const;
  JobMetrics metrics() const;

 private:
  // Of control::Participant.
  std::vector<control::GroupProgress> freeze(control::Epoch epoch) override;
  void install(const control::Verdict& verdict, const control::Contacts& contacts) override;
  void fenced(control::Epoch epoch, const std::string& why) override;
  void attend() override;
  void quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) override;

  void count(const control::Verdict& verdict);
  void publish_changes();
  /// Fills lost slots under OnFailure::retry, where no caller asks for it.
  void admit_replacements(const control::View& view);

  std::string address_;
  ProcessRanks ranks_;
  std::unique_ptr<control::Control> control_;
  std::shared_ptr<collectives::WireTransport> transport_;
  std::unique_ptr<collectives::Engine> engine_;
  std::unique_ptr<collectives::ProgressThread> progress_thread_;
  std::unique_ptr<collectives::Recovery> recovery_;
  FileDescriptor witness_memory_;
  Recoveries recoveries_;
  uint64_t refused_by_wire_ = 0;

  mutable std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<std::function<void()>>> listeners_;
  control::Epoch epoch_published_ = 0;
  control::View view_;
};

}  // namespace tokenyard
