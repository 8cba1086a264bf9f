/// The host side of combines.
#pragma once

#include <memory>

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/failures.hpp"

namespace tokenyard::throughput {

/// Input and output of a combine whose arrays are what the call needs: from here on addresses are
/// enough.
struct CombineArguments {
  const void* y = nullptr;  ///< [by_expert's rows, or the route's, hidden] of `type`
  DataType type = DataType::bfloat16;
  const ExpertRows* by_expert = nullptr;
  bool weighted = false;
  const float* topk_weights = nullptr;   ///< [the route's rows, topk], or null
  const void* biases[2] = {};            ///< [tokens, hidden] of `type`, or null
  const uint32_t* rank_order = nullptr;  ///< [tokens, ranks], or null
  void* out = nullptr;                   ///< [tokens, hidden] of `type`
  float* out_topk_weights = nullptr;     ///< [tokens, topk], or null
  uint32_t sms = 0, local_sms = 0;
};

class Combiner {
 public:
  Combiner(CallContext& context, const Failures& failures)
      : context_(context), setup_(context.setup), failures_(failures) {}

  void combine(const CombineInput& input, const Route& route, const CombineOutput& output,
               Stream stream);
  CombineBuffer buffer(const Route& route, DataType type, Stream stream) const;

 private:
  /// Throws InvalidArgument naming the first argument that cannot be.
  CombineArguments checked(const CombineInput& input, const Route::State& route,
                           const CombineOutput& output) const;
  /// Returns how many results are summed per prepared row, or kCopiedRow.
  PreparedRow prepared_row(const CombineArguments& input) const;
  /// Returns whether blocks of the combine's own grid prepare rows while others pull.
  bool prepares_beside(const CombineArguments& input, const Plan& plan,
                       const Route::State& route) const;
  Preparation prepare_beside(const CombineArguments& input, const Plan& plan,
                             const Route::State& route, std::byte* to) const;
  /// Launches a kernel that sums results by expert to one per received row; returns the sums.
  std::shared_ptr<CallMemory> reduce(const CombineArguments& input, const Plan& plan, Stream stream,
                                     Route::State& route) const;
  ResultsParams results_params(const CombineArguments& input, const Route::State& route,
                               std::byte* to, uint32_t groups, const StagePlan& rings) const;

  CallContext& context_;
  const Setup& setup_;
  const Failures& failures_;
};

}  // namespace tokenyard::throughput
