/// The host side of combines.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/failures.hpp"

namespace tokenyard::throughput {

class Combiner {
 public:
  Combiner(CallContext& context, const Failures& failures)
      : context_(context), setup_(context.setup), failures_(failures) {}

  void combine(const CombineInput& input, const Route& route, const CombineOutput& output,
               Stream stream);
  std::shared_ptr<void> output_buffer(const Route& route, ElementType type, Stream stream) const;

 private:
  void check_combine(const CombineInput& input, const Route::State& route,
                     const CombineOutput& output) const;
  /// Returns how many results are summed per prepared row, or kCopiedRow.
  PreparedRow prepared_row(const CombineInput& input) const;
  /// Returns whether blocks of the combine's own grid prepare rows while others pull.
  bool prepares_beside(const CombineInput& input, const Plan& plan,
                       const Route::State& route) const;
  Preparation prepare_beside(const CombineInput& input, const Plan& plan, const Route::State& route,
                             std::byte* to) const;
  /// Launches a kernel that sums results by expert to one per received row; returns the sums.
  std::shared_ptr<CallMemory> reduce(const CombineInput& input, const Plan& plan, Stream stream,
                                     Route::State& route) const;
  ResultsParams results_params(const CombineInput& input, const Route::State& route, std::byte* to,
                               uint32_t groups, const StagePlan& rings) const;

  CallContext& context_;
  const Setup& setup_;
  const Failures& failures_;
};

}  // namespace tokenyard::throughput
