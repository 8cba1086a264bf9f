/// A DeviceCollectives' windows, words and calls.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/device/host/device_collectives.hpp"
#include "collectives/device/host/host_links.hpp"
#include "collectives/device/host/requests.hpp"
#include "collectives/device/kernels/device_call.hpp"
#include "device/device_memory.hpp"
#include "device/last_stream.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"

namespace tokenyard::device_collectives {

/// All that an object has in one world, beneath its calls.
struct Session {
  Session(World& of_caller, const Options& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Throws InvalidArgument once it is closed, else the error of the first call that failed.
  void begin_call() const;
  /// Throws the error of the first call that failed, as far as the host can see it.
  void check() const;
  void require_open() const;
  /// Throws Unsupported, naming `what`, in a world that spans hosts.
  void require_one_host(const char* what) const;
  /// Waits for a stream's work. A call ends at its deadline; the caller's other work gets as much
  /// time again.
  void await(Stream stream, const std::string& what);
  void await_last();
  /// Returns the parameters of a call, without what its protocol adds.
  CallParams params_of(const Request& request, const Movement& movement, Protocol protocol,
                       const Call& call);
  /// Returns the blocks of a call: those asked for, or `chosen`, as far as the device has them.
  uint32_t blocks_for(const Call& call, uint32_t chosen) const;
  bool on_host() const { return accelerator.kind() != AcceleratorKind::gpu; }

  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  Accelerator& accelerator;
  const Bytes16 key;
  const Options options;
  const WindowLayout layout;
  ArenaBlock window;
  Windows windows{};
  std::optional<DeviceMemory> table;  ///< addresses of windows beyond those passed by value
  DeviceMemory workspace, channels;
  ErrorRecord errors;
  LastStream last, last_messages;
  std::unique_ptr<HostLinks> links;  ///< if the world spans hosts
  std::chrono::nanoseconds longest_timeout{0};
  bool closed = false;

 private:
  void open();
  [[noreturn]] void throw_difference() const;
  [[noreturn]] void throw_other_counts() const;
};

}  // namespace tokenyard::device_collectives
