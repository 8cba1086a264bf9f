/// The host side of dispatches.
#pragma once

#include <memory>

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/counts.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/host/failures.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"
#include "expert_parallel/throughput/host/watched_rows.hpp"

namespace tokenyard {
class ArenaFull;
}

namespace tokenyard::throughput {

/// A dispatch before its launch.
struct PreparedDispatch {
  std::shared_ptr<Route::State> route;
  DispatchArguments input;                        ///< as sent: cast, and with places for experts
  std::shared_ptr<CallMemory> cast_rows, places;  ///< inputs of this call in the arena
  std::shared_ptr<CallMemory> rows;               ///< memory of the received rows
  Plan plan;
  DispatchParams params;

  /// Returns whether the host waits for the counts.
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

  // Steps shared by all dispatches that exchange counts.

  /// Does everything but the launch, with memory for as many rows as may arrive. If the arena has
  /// no room, all ranks refuse a dispatch (without a bound of its rows, this one, too, by the same
  /// error, and the object works on).
  PreparedDispatch prepare(CallKind kind, const DispatchArguments& given, Stream stream);
  /// Launches by `launch_it`, and reads the counts if the host waits for them.
  template <class Launch>
  void run(PreparedDispatch& call, Launch launch_it) {
    const uint32_t epoch_before = call.waits() ? counts_.epoch() : 0;
    failures_.guard(call.params.call.kind, [&] {
      launch_it();
      if (call.waits()) await_counts(epoch_before);
    });
    if (call.waits()) read_counts(call);
    // Counts may have arrived although rows did not; in a world on the host the call has ended, so
    // this detects it.
    failures_.check();
  }
  /// Returns the result of a dispatch.
  Received received(const std::shared_ptr<Route::State>& route, const RowFormat& format,
                    const ReceivedLayout& layout, std::shared_ptr<CallMemory> owner,
                    const WatchedRows& watched) const;

 private:
  PreparedDispatch prepare_in_arena(CallKind kind, const DispatchArguments& given, Stream stream);
  /// Takes part in a dispatch that all ranks refuse since this rank has no room. Throws what they
  /// throw, but returns if no host waits for the call.
  void refuse_for_room(const DispatchArguments& given, const ArenaFull& full, Stream stream);
  /// Returns the input with its choices replaced by places, in memory that the call keeps; the
  /// input itself if experts are at the places of their numbers.
  DispatchArguments place(const DispatchArguments& input, const Plan& plan, Stream stream,
                          PreparedDispatch& call) const;
  DispatchParams make_params(CallKind kind, const DispatchArguments& input,
                             const Route::State& route, const Plan& plan) const;
  /// Throws InvalidArgument if the exchange between hosts cannot carry such rows.
  void check_launch(const DispatchParams& params, const Plan& plan) const;
  void launch_dispatch(const DispatchParams& params, const Plan& plan, Stream stream) const;
  /// Waits for the counts of the dispatch launched after the record had the epoch `epoch_before`.
  void await_counts(uint32_t epoch_before) const;
  /// Copies the counts into the route, and frees memory for rows that will not arrive.
  void read_counts(PreparedDispatch& call) const;

  CallContext& context_;
  const Setup& setup_;
  const Counts& counts_;
  const Failures& failures_;
  const ExpertMap& experts_;
  const RowCaster& caster_;
};

}  // namespace tokenyard::throughput
