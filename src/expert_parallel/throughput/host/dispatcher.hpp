/// Dispatches, from the host's side.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/counts.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/host/expert_map.hpp"
#include "expert_parallel/throughput/host/failures.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"
#include "expert_parallel/throughput/host/watched_rows.hpp"

namespace tokenyard::throughput {

/// A dispatch on its way to its launch.
struct PreparedDispatch {
  std::shared_ptr<Route::State> route;
  DispatchArguments input;                        ///< as it travels
  std::shared_ptr<CallMemory> cast_rows, places;  ///< that it reads
  std::shared_ptr<CallMemory> rows;               ///< that come
  Plan plan;
  DispatchParams params;

  /// Whether the host waits for the counts.
  bool waits() const { return params.awaited; }
};

class Dispatcher {
 public:
  Dispatcher(CallContext& context, const Counts& counts, const Failures& failures,
             const ExpertMap& experts, const RowCaster& caster)
      : context_(context),
        setup_(context.setup),
        counts_(counts),
        failures_(failures),
        experts_(experts),
        caster_(caster) {}

  Received dispatch(const DispatchInput& input, Stream stream);
  Received dispatch_again(const DispatchInput& input, const Route& route, Stream stream);

  // The steps of a dispatch that counts, whatever its kernel.

  /// Makes all of it but the launch, with memory for as many rows as may come.
  PreparedDispatch prepare(CallKind kind, const DispatchArguments& given, Stream stream);
  /// Launches it by `launch_it`, and reads the counts if the host waits for them.
  template <class Launch>
  void run(PreparedDispatch& call, Launch launch_it) {
    const uint32_t epoch_before = call.waits() ? counts_.epoch() : 0;
    failures_.guard([&] {
      launch_it();
      if (call.waits()) await_counts(epoch_before);
    });
    if (call.waits()) read_counts(call);
    // Counts may be here whose rows never came: on the host the call has ended, and it is known.
    failures_.check();
  }
  /// Returns what a dispatch brought, for its caller.
  Received received(const std::shared_ptr<Route::State>& route, const RowFormat& format,
                    const ReceivedLayout& layout, std::shared_ptr<CallMemory> owner,
                    const WatchedRows& watched) const;

 private:
  DispatchParams make_params(CallKind kind, const DispatchArguments& input,
                             const Route::State& route, const Plan& plan) const;
  void launch_dispatch(const DispatchParams& params, const Plan& plan, Stream stream) const;
  /// Waits for the counts of the dispatch that was launched after the record had this epoch.
  void await_counts(uint32_t epoch_before) const;
  /// Reads into the route what the record says, and gives back memory for rows that do not come.
  void read_counts(PreparedDispatch& call) const;

  CallContext& context_;
  const Setup& setup_;
  const Counts& counts_;
  const Failures& failures_;
  const ExpertMap& experts_;
  const RowCaster& caster_;
};

}  // namespace tokenyard::throughput
