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
  uint32_t workers = 0;        ///< blocks; 0: one per multiprocessor (on the host: 4)
  uint32_t compute_warps = 0;  ///< per block; 0: 8 (on the host: as many as the graph needs)
  uint32_t unit_bytes = 4096;  ///< bytes per unit that tasks stream
  uint32_t ring_units = 0;     ///< units per warp; 0: as many as fit, up to 6 (on the host: 3)
  uint32_t in_flight = 2;      ///< copies that each warp may have in flight
  /// Blocks that assign tasks to workers at run time; 0: tasks are placed when the graph is
  /// compiled.
  uint32_t schedulers = 0;
  /// In dynamic runs, the capacity of the queue in tasks per worker, at most 1024; schedulers wait
  /// while it is full. 0: all tasks of an iteration.
  uint32_t task_slots = 0;
  uint32_t event_slots = 0;    ///< events a scheduler can watch at once; 0: all
  uint32_t trace_records = 0;  ///< newest tasks per worker in trace(); 0: no trace
  /// On hosts only: checks each access of each task, and ends the run with InvalidGraph
  /// (undeclared_access) before an access outside the task's regions, or past the end of a piece of
  /// memory, takes place. Slow. Throws Unsupported on GPUs, and if the tasks have no kernel that
  /// reports its accesses.
  bool check_accesses = false;
};

/// Runs a graph in one persistent kernel per rank. Collective: every rank constructs one with its
/// own graph. Only one thread may call methods at a time, except for feed(), which another thread
/// may call during a wait. After a TaskTimeout, PeerLost or Cancelled the object has failed
/// permanently: results of finished iterations are valid, and every later call that needs a run
/// throws the same class again.
class Megakernel {
 public:
  /// Compiles the graph. Throws InvalidGraph on all ranks, before any launch, if one is invalid.
  Megakernel(World& world, const Graph& graph, const MegakernelOptions& options = {});
  ~Megakernel();
  Megakernel(const Megakernel&) = delete;
  Megakernel& operator=(const Megakernel&) = delete;

  /// Collective. Runs `iterations` iterations and returns how many it ran. A graph with a loop
  /// event may end earlier, and for it 0 sets no limit. Throws InvalidArgument if the ranks ask for
  /// different numbers.
  uint32_t run(uint32_t iterations);

  /// Collective. Starts a run whose iterations begin as the host feeds them.
  void start();
  /// Allows `iterations` more iterations, up to 2^31 - 1 per run. Their tasks see everything that
  /// the host wrote to its inputs before this call.
  void feed(uint32_t iterations = 1);
  /// Waits until `iterations` iterations of this run have finished or its loop has ended, and
  /// returns how many have finished: fewer than asked only if the loop has ended. Their outputs may
  /// be read.
  uint32_t await(uint32_t iterations);
  /// Ends the run after all fed iterations and returns how many ran: fewer than were fed if its
  /// loop ended.
  uint32_t stop();

  /// Returns the number of iterations that all workers finished, over all runs, failed ones
  /// included.
  uint64_t finished_iterations() const;
  /// Returns the time from the last run's launch to its end, in milliseconds, on the device's
  /// clock.
  double last_run_ms() const;
  /// Returns this rank's trace of the last run. Throws InvalidArgument during a run.
  Trace trace() const;
  /// Collective. Returns the traces of all ranks, [ranks], on every rank; perfetto() makes one file
  /// of them. Throws as World::all_gather does.
  std::vector<Trace> traces() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Memory of one rank for a graph's tensors. Shared memory has the same size on all ranks, and
/// every rank's tasks reach all of it. This object owns the memory of every view that it returns.
class TensorMemory {
 public:
  explicit TensorMemory(World& world);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  /// Returns zeroed memory, 256-byte aligned, for tasks of this rank.
  TensorView local(size_t bytes);
  /// Returns zeroed memory that tasks and host code of this rank reach at one address: for inputs
  /// of fed runs.
  TensorView visible(size_t bytes);
  /// Returns the number of unused bytes behind each piece of local or visible memory. On hosts
  /// only.
  uint64_t guard_bytes() const;
  /// Collective. Returns each rank's zeroed memory, [ranks], at the addresses that this rank's
  /// tasks use: for a rank of another host those of a mirror, which the network puts there.
  std::vector<TensorView> shared(size_t bytes);
  /// Collective. Returns the same for the ranks of this rank's host only; other views are empty.
  std::vector<TensorView> shared_on_host(size_t bytes);
  /// Returns whether tasks of this rank load and store memory of `rank`: it is on the same host.
  /// Throws InvalidArgument if there is no such rank.
  bool reaches(uint32_t rank) const;
  /// Copies between memory of this rank's host and memory of any rank, and waits for the copy.
  /// Throws InvalidArgument unless both views are contiguous and have equally many bytes.
  void write(const TensorView& to, const ConstTensorView& from);
  void read(const TensorView& to, const ConstTensorView& from);

  struct Impl;

 private:
  TensorView allocate(size_t bytes, bool visible);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tokenyard::megakernel
