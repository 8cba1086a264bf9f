/// A Megakernel's memory on its device: the program's tables, the run's words, and the window that
/// all ranks can reach.
#pragma once

#include <memory>
#include <vector>

#include "device/device_memory.hpp"
#include "fabric/arena.hpp"
#include "megakernel/compile.hpp"
#include "megakernel/kernels/run_params.hpp"
#include "megakernel/network_tables.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard::megakernel {

/// Waits until all enqueued work has ended. `what` names it in the error after a timeout.
void await_stream(World& world, Stream stream, const std::string& what);

class DeviceTables {
 public:
  /// Collective. Windows are zeroed before any rank learns their addresses.
  DeviceTables(World& world, const Program& program, const Graph& graph, const Shape& shape,
               uint32_t trace_records);
  ~DeviceTables();

  /// Fills in the parameters that are the same in every run.
  void describe(RunParams& params) const;
  /// Keeps the window from reuse for the lifetime of the arena, since late signals of peers may
  /// land in it.
  void quarantine() { window_.quarantine(); }

  RunRecord* record() const { return record_.as<RunRecord>(); }
  const StallRecord* stalls() const { return stalls_.as<StallRecord>(); }
  const uint64_t* progress() const { return progress_.as<uint64_t>(); }
  std::vector<TraceRecord> read_trace() const;  ///< [workers][trace_records]
  /// Returns an event's counter. All its signals must have arrived, since nothing may store there
  /// during the read.
  uint64_t read_counter(uint32_t event) const;
  Promise read_promise(uint32_t event) const;
  std::vector<uint32_t> read_trace_used() const;  ///< [workers]
  uint32_t trace_records() const { return trace_records_; }

 private:
  uint64_t read_word(size_t at) const;
  template <class T>
  std::unique_ptr<DeviceMemory> upload(const std::vector<T>& values);
  void open_windows();

  World& world_;
  WindowLayout layout_;
  const Shape shape_;
  uint32_t trace_records_;
  ArenaBlock window_;
  std::unique_ptr<DeviceMemory> windows_, packets_, positions_, queues_, events_;
  // Dynamic runs only:
  std::unique_ptr<DeviceMemory> watches_, dependents_, places_, arrived_, open_, slots_, tickets_;
  std::unique_ptr<DeviceMemory> task_queues_, heads_, sent_;
  DynamicParams dynamic_;
  DeviceMemory workspace_, record_, stalls_, progress_;
  std::unique_ptr<DeviceMemory> trace_, trace_used_;
};

}  // namespace tokenyard::megakernel
