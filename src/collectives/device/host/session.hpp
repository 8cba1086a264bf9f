/// A DeviceCollectives' windows, words and calls.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/device/host/call_log.hpp"
#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/host/host_links.hpp"
#include "collectives/device/host/members.hpp"
#include "collectives/device/host/message_links.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/device_call.hpp"
#include "device/device_memory.hpp"
#include "device/last_stream.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/finished_calls.hpp"

namespace tokenyard::device_collectives {

/// Calls that a rank has finished.
struct Finished {
  uint64_t launches;  ///< of the session
  uint64_t calls;     ///< of the object
};

/// All that an object has in one world, beneath its calls.
class Session {
 public:
  /// Collective. `world`: pinned. `before`: the session that this one follows, or null. Waits for
  /// the end of its calls and agrees which of them all ranks have finished, before any peer learns
  /// an address of this rank.
  Session(std::shared_ptr<World> world, const Options& options, Session* before);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool failed() const { return errors.failed() || message_errors.failed(); }
  bool captured() const { return last.captured() || last_messages.captured(); }
  /// Lets nothing be called any more. If a CUDA graph has captured calls, its replays fail from now
  /// on, and `take_replay` notices it.
  void retire();
  /// Returns whether there was a replay since `retire` or the last call of this that returned true.
  bool take_replay();
  /// Waits for the end of all calls, and returns those that this rank has finished.
  Finished settle();
  /// Returns the error of a collective call, or null: of one that has failed, of each after it, and
  /// once ranks have gone on of each call that not all of them have finished. `ended`: whether the
  /// call was seen to have ended.
  std::exception_ptr error_of(uint64_t call, bool ended);
  /// Returns the same for messages, if they were not seen to have ended before a failure.
  std::exception_ptr error_of_messages() const;
  /// Returns OperationAborted if this rank has finished a call in the session before that not all
  /// ranks which have gone on have finished.
  const std::optional<OperationAborted>& undone() const { return undone_; }

  /// Throws the error of the first call that failed, as far as the host can see it.
  void check() const;
  /// Waits for a stream's work. A call ends at its deadline; the caller's other work gets as much
  /// time again.
  void await(Stream stream, const std::string& what);
  void await_last();
  std::chrono::nanoseconds timeout_of(const Call& call) const {
    return call.timeout.value_or(world->timeout());
  }
  /// Returns the parameters of a call, without what its protocol adds.
  CallParams params_of(const Request& request, const Movement& movement, Protocol protocol,
                       const Call& call);
  /// Returns the blocks of a call: those asked for, or `chosen`, as far as the device has them.
  uint32_t blocks_for(const Call& call, uint32_t chosen) const;
  /// Enqueues a launch of the call that the log has begun.
  template <class Params>
  void launch_call(const Kernel<Params>& kernel, const LaunchShape& shape, Stream stream,
                   const Params& params) {
    launch(accelerator, kernel, shape, stream, params);
    if (!accelerator.captures(stream)) log.launched();
  }
  /// Throws InvalidArgument for a stream in which no input can be kept.
  void require_keeps(Stream stream) const;
  /// Enqueues a copy of what a call is about to overwrite, its input.
  void keep(const TensorView& tensor, Stream stream);
  /// Enqueues, behind the call, that the kept bytes return if it has failed.
  void restore_if_failed(const TensorView& tensor, Stream stream);
  /// Enqueues zeros for the parts of empty slots in a result.
  void clear_empty(void* result, uint64_t part, Stream stream);
  bool on_host() const { return accelerator.kind() != AcceleratorKind::gpu; }

  const std::shared_ptr<World> world;  ///< stays when the caller's World goes on
  Accelerator& accelerator;
  const Members members;

 private:
  /// Agreed when this session was made, about those before.
  const AgreedCalls agreed_;

 public:
  const Bytes16 key;
  const Options options;
  const WindowLayout layout;
  ArenaBlock window;
  Windows windows{};
  std::optional<DeviceMemory> table;  ///< addresses of windows beyond those passed by value
  DeviceMemory workspace, channels;
  ErrorRecord errors, message_errors;
  CallLog log;
  LastStream last, last_messages;
  std::unique_ptr<HostLinks> links;             ///< if the world spans hosts
  std::unique_ptr<MessageLinks> message_links;  ///< the same
  std::chrono::nanoseconds longest_timeout{0};
  bool closed = false;

 private:
  void open();
  void make_links();
  /// Ends this session with what the ranks that have gone on agreed on.
  void conclude(const Session& next);
  OperationAborted aborted(uint64_t call) const;
  std::optional<OperationAborted> undone_here();

  std::optional<DeviceMemory> kept_;  ///< of one call after the other, in stream order
  uint64_t kept_bytes_ = 0;
  std::optional<Finished> settled_;
  uint64_t seen_done_ = 0;             ///< last call that this rank was told to be done
  uint64_t refused_ = UINT64_MAX;      ///< first call whose error this rank was told
  std::optional<uint64_t> concluded_;  ///< calls that all ranks have finished which have gone on
  uint64_t launches_concluded_ = 0;    ///< the same of launches
  std::vector<uint32_t> lost_;         ///< ranks that have not gone on
  std::optional<OperationAborted> undone_;
};

}  // namespace tokenyard::device_collectives
