/// Where the kernels of one rank run: a GPU, the SIMT executor on the calling thread, or the
/// simulator. Host code launches kernels through this interface only, so the same host code runs
/// in all three worlds.
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

/// A place in a queue: a cudaEvent_t on a GPU.
struct Event {
  uintptr_t native = 0;
};

struct LaunchShape {
  uint32_t blocks = 1;
  uint32_t warps = 1;  ///< per block
  uint32_t extra_shared_bytes = 0;
  bool cooperative = true;        ///< all blocks must be resident at once, or the launch is refused
  bool overlap_previous = false;  ///< programmatic dependent launch
  /// Waits for no other rank, so that ranks on one GPU need not launch it together, nor all of
  /// them.
  bool local = false;
  /// Judges the accesses of threads that have begun a part, where kernels run on a host or in the
  /// simulator; must outlive the run. Of plain kernels only what words of src/device touch.
  const AccessGuard* guard = nullptr;
};

/// What a kernel can get here; kernels' shapes are chosen from it.
struct Capacity {
  uint32_t multiprocessors;
  uint32_t shared_bytes;  ///< a block can have
  /// Whether ranks share them: a launch of theirs is one grid, for which all give the same shape.
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

  /// Loads a kernel. Objects that launch kernels call this when they are made, so that nothing is
  /// loaded while kernels wait for one another.
  virtual void prepare(const KernelEntry&) {}
  /// Enqueues one run of a kernel. On the host it has ended when this returns, unless another
  /// host thread must get on first (the simulator lets other ranks run meanwhile). Throws
  /// InvalidArgument for a shape beyond capacity, OsError with CUDA's text.
  virtual void launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                      const void* params) = 0;

  /// Memory of this rank that its kernels use, zeroed. 256-byte aligned.
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  /// Memory that host code and kernels both use at one address, zeroed (pinned, mapped on a GPU).
  virtual void* allocate_shared(size_t bytes) = 0;
  virtual void free_shared(void* memory) = 0;

  /// Copies and fills in stream order, between any two of: this rank's memory, host memory.
  virtual void copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  virtual void fill(void* to, int byte, size_t bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void free_stream(Stream stream) = 0;
  /// Returns whether work enqueued there is captured into a CUDA graph instead of run.
  virtual bool captures(Stream) { return false; }
  virtual Event record(Stream stream) = 0;
  /// Records an event without a timestamp, which costs the stream nothing (3 us with one, H200).
  virtual Event mark(Stream stream) { return record(stream); }
  virtual void wait(Stream stream, Event event) = 0;  ///< enqueues the wait; does not block
  virtual bool done(Event event) = 0;
  virtual void free_event(Event event) = 0;
  virtual float elapsed_ms(Event begin, Event end) = 0;
  /// Returns once all work that this rank enqueued has ended or failed.
  virtual void drain() {}

  /// Waits until `condition()` holds; returns false once `until` has passed. Host code has no other
  /// way to wait. Calls the world's interrupt check now and then, which may throw.
  virtual bool wait_until(TimePoint until, const std::function<bool()>& condition) = 0;
  virtual TimePoint now() const { return Clock::now(); }  ///< virtual time in the simulator

  // Flags in allocate_shared memory, as host code reads and writes them (acquire, release).
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
