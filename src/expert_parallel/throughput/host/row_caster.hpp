/// Casts rows to FP8 before they are sent.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"

namespace tokenyard::throughput {

/// Returns the format of the input's rows once they are cast. Throws InvalidArgument for rows that
/// cannot be cast.
RowFormat format_of_cast(const DispatchArguments& input, uint32_t hidden);

class RowCaster {
 public:
  explicit RowCaster(const CallContext& context) : context_(context) {}

  /// Returns the input with its rows cast, if it asks for that, in memory owned by `made`.
  DispatchArguments cast(const DispatchArguments& input, const Plan& plan, Stream stream,
                         Route::State& route, std::shared_ptr<CallMemory>& made) const;

 private:
  const CallContext& context_;
};

}  // namespace tokenyard::throughput
