/// The implementation of Megakernel, shared by its source files.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/owned_event.hpp"
#include "fabric/abort_flag.hpp"
#include "megakernel/device_tables.hpp"
#include "megakernel/proofs/access_watch.hpp"
#include "megakernel/trace/traced_graph.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

struct Megakernel::Impl {
  Impl(World& of_caller, const Graph& graph, const MegakernelOptions& options);
  ~Impl();

  void launch(uint32_t iterations, bool fed);
  void await_end();
  uint32_t end_run();
  bool run_ended();
  [[noreturn]] void throw_failure();
  void check_usable() const;
  void check_counts();
  void drain_network();
  [[noreturn]] void throw_surplus(uint32_t event, uint64_t expected, uint64_t seen) const;
  void require_started(const char* call) const;

  const std::shared_ptr<World> pinned;  ///< stays when the caller's World goes on
  World& world;
  Accelerator& accelerator;
  const FarRanks far;
  Graph graph;  ///< and the events of its network plan
  const Shape shape;
  const KernelEntry& kernel;
  const std::unique_ptr<const AccessWatch> watch;
  ErrorRecord cell;
  Program program;
  std::vector<EventTriggers> triggers;        ///< of this rank's events
  std::vector<std::vector<uint32_t>> queues;  ///< [workers] tasks; static runs only
  std::vector<std::string> signallers;        ///< [events] tasks with dynamic signals; empty: none
  uint32_t tail_bytes = 0;                    ///< shared memory per block, enough for any rank
  std::unique_ptr<DeviceTables> tables;
  std::unique_ptr<NetworkTables> network;  ///< between hosts
  TracedGraph traced;
  /// Kernels see the lower half, which wraps; tickets must not.
  uint64_t runs = 0;
  std::atomic<uint64_t> finished = 0;  ///< iterations, over all runs
  /// Guards the members below, which feed() uses while another thread may be in await().
  mutable std::mutex state;
  bool running = false, fed_run = false;
  std::exception_ptr failure;  ///< the first error that the object threw
  uint32_t fed = 0;
  std::optional<uint32_t> ended_by_loop;   ///< fed runs: iterations, if the run ended before stop()
  std::optional<OwnedEvent> begun, ended;  ///< of the last run without a thread
  double run_ms = 0;                       ///< of the last run
  /// Runs a fed run on hosts, where launch() returns only at the end of the kernel.
  std::jthread thread;
  std::atomic<bool> thread_ended = false;
  std::exception_ptr thread_failure;
};

}  // namespace tokenyard::megakernel
