/// The places of experts: those of their numbers, unless the caller set a map.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/dispatch_arguments.hpp"
#include "expert_parallel/throughput/kernels/place_choices.hpp"

namespace tokenyard::throughput {

class ExpertMap {
 public:
  explicit ExpertMap(const CallContext& context) : context_(context) {}

  /// Collective: see ExpertParallel::set_expert_map.
  void set(std::span<const int32_t> expert_at);

  /// Returns the input with its choices replaced by places, in memory owned by `made`; the input
  /// itself if no map is set.
  DispatchArguments placed(const DispatchArguments& input, const Plan& plan, Stream stream,
                           Route::State& route, std::shared_ptr<CallMemory>& made) const;
  /// Converts an id seen by a kernel back to the caller's numbering.
  int64_t given_id(int64_t id) const;
  /// Returns the number of experts in the caller's numbering.
  uint32_t experts() const {
    return table_.experts == 0 ? context_.setup.options.experts : table_.experts;
  }

 private:
  const CallContext& context_;
  PlacementTable table_{};  ///< experts == 0: no map is set
  std::optional<DeviceMemory> words_;
  std::vector<int32_t> expert_at_;  ///< [places]
};

}  // namespace tokenyard::throughput
