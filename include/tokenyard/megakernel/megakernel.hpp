/// A compiled graph, ready to run on this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tokenyard/megakernel/error.hpp"
#include "tokenyard/megakernel/graph.hpp"
#include "tokenyard/megakernel/trace.hpp"
#include "tokenyard/tensor.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

struct MegakernelOptions {
  uint32_t workers = 0;        ///< blocks; 0: all multiprocessors (on the host: 4)
  uint32_t compute_warps = 0;  ///< per block; 0: 8 (on the host as many as the graph needs)
  uint32_t unit_bytes = 4096;  ///< of what tasks stream
  uint32_t ring_units = 0;     ///< per warp; 0: as many as fit, up to 6 (on the host: 3)
  uint32_t in_flight = 2;      ///< most copies in flight per warp
  /// Blocks that assign tasks to workers while the graph runs; 0: compile() places all
  /// tasks.
  uint32_t schedulers = 0;
  /// Queue capacity in tasks per worker, for dynamic runs: at most 1024, and schedulers wait while
  /// it is full; 0: all tasks of an iteration.
  uint32_t task_slots = 0;
  uint32_t event_slots = 0;    ///< events that a scheduler watches; 0: all
  uint32_t trace_records = 0;  ///< newest tasks per worker kept for trace(); 0: no trace
  /// On hosts: looks at each access of each task, and ends a run with InvalidGraph
  /// (undeclared_access) before one outside the task's regions, or behind a piece, happens. Slow.
  /// Throws Unsupported on GPUs, and for tasks without a kernel that reports its accesses.
  bool check_accesses = false;
};

/// Collective: every rank makes one with its own graph. All methods are called by one thread at a
/// time, but for feed(), which another thread may call while one waits. After a TaskTimeout,
/// PeerLost or Cancelled the object is failed: results of finished iterations remain, and every
/// further call that needs a run throws the same class and says that the object has failed.
class Megakernel {
 public:
  /// Throws InvalidGraph on every rank, before any launch.
  Megakernel(World& world, const Graph& graph, const MegakernelOptions& options = {});
  ~Megakernel();
  Megakernel(const Megakernel&) = delete;
  Megakernel& operator=(const Megakernel&) = delete;

  /// Collective. Runs this many iterations, or fewer if its loop event ends the loop (with a
  /// loop event, 0 sets no limit), and returns the number run. Throws InvalidArgument if another
  /// rank asks for another number.
  uint32_t run(uint32_t iterations);

  /// Collective. Begins a run that executes an iteration whenever the host has fed one.
  void start();
  /// Allows this many more iterations, up to 2^31 - 1 per run. Their tasks see all inputs that the
  /// host wrote before the call.
  void feed(uint32_t iterations = 1);
  /// Waits until this many iterations of the run have ended, or its loop has; their outputs may
  /// then be read. Returns the number ended: fewer than asked only if the loop has ended.
  uint32_t await(uint32_t iterations);
  /// Ends the run after all fed iterations and returns the number that ran: fewer than were fed if
  /// its loop ended.
  uint32_t stop();

  /// Iterations that all workers have finished, over all runs: also after a run has failed.
  uint64_t finished_iterations() const;
  /// Returns the time from the last run's launch to its end, by the device's clock.
  double last_run_ms() const;
  /// Returns the trace of the last run on this rank. Throws InvalidArgument during a run.
  Trace trace() const;
  /// Collective. Returns [ranks] the traces of all ranks; perfetto() makes one file of them.
  /// Throws as World::all_gather does.
  std::vector<Trace> traces() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Memory of one rank for a graph's tensors. Shared pieces are of the same size on all ranks, and
/// every rank's tasks reach all of them.
class TensorMemory {
 public:
  explicit TensorMemory(World& world);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  /// Zeroed, 256-byte aligned, for tasks of this rank.
  TensorView local(size_t bytes);
  /// Zeroed, for tasks of this rank and for its host code, at one address: inputs of fed runs.
  TensorView visible(size_t bytes);
  /// On hosts: bytes behind each piece of local or visible memory that belong to nothing else.
  uint64_t guard_bytes() const;
  /// Collective. Zeroed. [ranks] where each rank's piece is, as this rank's tasks reach it.
  std::vector<TensorView> shared(size_t bytes);
  /// Copies between this rank's host and any piece, and waits until it is done.
  /// Throws InvalidArgument unless both are contiguous and have as many bytes.
  void write(const TensorView& to, const ConstTensorView& from);
  void read(const TensorView& to, const ConstTensorView& from);

  struct Impl;

 private:
  TensorView allocate(size_t bytes, bool visible);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard::megakernel
