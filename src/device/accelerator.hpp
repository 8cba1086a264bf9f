/// An interface to the device that runs one rank's kernels: a GPU, the SIMT executor on the calling
/// thread, or the simulator. Host code launches kernels only through it, so the same host code runs
/// on all three.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include "device/access_guard.hpp"
#include "device/kernel.hpp"
#include "tokenyard/stream.hpp"

namespace tokenyard {

enum class AcceleratorKind : uint8_t { gpu, host, simulated };

/// A point in a stream: a cudaEvent_t on a GPU.
struct Event {
  uintptr_t native = 0;
};

struct LaunchShape {
  uint32_t blocks = 1;
  uint32_t warps = 1;  ///< per block
  uint32_t extra_shared_bytes = 0;
  bool cooperative = true;        ///< refuse the launch unless all blocks can be resident at once
  bool overlap_previous = false;  ///< programmatic dependent launch
  /// The kernel waits for no other rank, so ranks that share a GPU may launch it separately, or
  /// only some of them.
  bool local = false;
  /// Checks the accesses of threads that have begun a part, on the host and in the simulator. Must
  /// outlive the run. It sees every access of a checked kernel, but only the words' of others.
  const AccessGuard* guard = nullptr;
};

/// The resources that a kernel may use here, from which host code chooses launch shapes.
struct Capacity {
  uint32_t multiprocessors;
  uint32_t shared_bytes;  ///< shared memory per block, at most
  /// Whether ranks share the device: their launches form one grid, so all must use the same shape.
  bool one_grid = false;
};

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual AcceleratorKind kind() const = 0;
  virtual std::string name() const = 0;  ///< "NVIDIA H200 #0 (GPU-...)", "host executor", ...
  virtual Capacity capacity() const = 0;
  virtual int device_index() const { return -1; }  ///< CUDA ordinal

  /// Loads a kernel. Objects that launch kernels call this in their constructors, so that no kernel
  /// is loaded while others wait for one another.
  virtual void prepare(const KernelEntry&) {}
  /// Enqueues one run of a kernel. The host executor returns when the run has ended; on a GPU and
  /// in the simulator it runs asynchronously, in stream order. Throws InvalidArgument for a shape
  /// beyond capacity, and OsError with CUDA's text.
  virtual void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                      const void* params) = 0;

  /// Returns zeroed memory for this rank's kernels, 256-byte aligned.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  /// Returns zeroed memory that host and kernels use at one address (on a GPU: pinned, mapped).
  virtual void* allocate_shared(size_t bytes) = 0;
  virtual void free_shared(void* memory) = 0;

  /// Copy and fill this rank's memory or host memory, in stream order.
  virtual void copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual void fill(void* to, int byte, size_t bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void free_stream(Stream stream) = 0;
  /// Returns whether the stream is being captured into a CUDA graph instead of run.
  virtual bool captures(Stream) { return false; }
  virtual Event record(Stream stream) = 0;
  /// Records an event without a timestamp, at no cost to the stream (with one: 3 us, H200).
  virtual Event mark(Stream stream) { return record(stream); }
  virtual void wait(Stream stream, Event event) = 0;  ///< enqueues the wait; does not block
  virtual bool done(Event event) = 0;
  virtual void free_event(Event event) = 0;
  virtual float elapsed_ms(Event begin, Event end) = 0;
  /// Waits until all work that this rank enqueued has ended or failed.
  virtual void drain() {}

  /// Waits until `condition()` holds; returns false once `until` has passed. Host code waits by no
  /// other means. Calls the world's interrupt check periodically, which may throw.
  virtual bool wait_until(TimePoint until, const std::function<bool()>& condition) = 0;
  virtual TimePoint now() const { return Clock::now(); }  ///< virtual time in the simulator

  // Host-side accesses of flags in allocate_shared memory: acquire loads, release stores.
  virtual uint32_t read_flag(const uint32_t* flag) = 0;
  virtual void write_flag(uint32_t* flag, uint32_t value) = 0;
};

template <class Params>
void launch(Accelerator& accelerator, const Kernel<Params>& kernel, const LaunchShape& shape,
            Stream stream, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>);
  accelerator.launch(kernel.entry, shape, stream, &params);
}

}  // namespace tokenyard
