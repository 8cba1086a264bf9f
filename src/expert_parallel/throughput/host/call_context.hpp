/// The state that every call of one session of an ExpertParallel object works with.
#pragma once

#include <memory>
#include <optional>

#include "device/last_stream.hpp"
#include "expert_parallel/internode/host/rails.hpp"
#include "expert_parallel/throughput/host/call_arena.hpp"
#include "expert_parallel/throughput/host/call_log.hpp"
#include "expert_parallel/throughput/host/control_window.hpp"
#include "expert_parallel/throughput/host/observation.hpp"
#include "expert_parallel/throughput/host/setup.hpp"
#include "expert_parallel/throughput/kernels/route_table.hpp"

namespace tokenyard::throughput {

struct CallContext {
  /// Collective. `world`: pinned; `exchange` identifies the object.
  CallContext(const std::shared_ptr<World>& world, const ExpertParallelOptions& options,
              std::shared_ptr<const void> exchange);
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  /// Returns the kernel parameters common to all kinds of calls.
  CallParams params(CallKind kind) const;
  WaitContext wait_context() const { return health->cell.wait_context(setup.world.timeout()); }
  RouteTable table_of(const Route::State& route) const;
  /// Returns the bytes of a route's tables, which lie behind its metadata.
  size_t table_bytes(const Route::State& route) const;
  /// Throws InvalidArgument unless this object made the route, in this session.
  void check_route(const Route& route) const;
  /// Waits for all work enqueued on `stream`; its owner may then destroy it.
  void wait(Stream stream);
  /// Waits for the last call, and quarantines memory that peers may still write.
  void close();

  const Setup setup;
  const std::shared_ptr<Health> health;
  const CallArena arena;
  ControlWindow window;
  std::optional<internode::RailExchange> rails;  ///< if the world spans hosts
  Observation observation;
  LastStream last_stream;
  CallLog calls;
};

}  // namespace tokenyard::throughput
