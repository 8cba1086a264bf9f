/// Rows that are cast to FP8 before they travel.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"

namespace tokenyard::throughput {

/// Returns the format that the input's rows travel in once they are cast; throws InvalidArgument
/// for rows that cannot be.
RowFormat format_of_cast(const DispatchArguments& input, uint32_t hidden);

class RowCaster {
 public:
  explicit RowCaster(const CallContext& context) : context_(context) {}

  /// Returns the input as it travels: with rows cast first, which `made` keeps, if so asked.
  DispatchArguments cast(const DispatchArguments& input, const Plan& plan, Stream stream,
                         Route::State& route, std::shared_ptr<CallMemory>& made) const;

 private:
  const CallContext& context_;
};

}  // namespace tokenyard::throughput
