/// Where experts live: by their numbers, unless the caller has said otherwise.
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

  /// Returns the input with the places of its picks, which `made` keeps; the input itself while
  /// experts live by their numbers.
  DispatchArguments placed(const DispatchArguments& input, const Plan& plan, Stream stream,
                           Route::State& route, std::shared_ptr<CallMemory>& made) const;
  /// Returns an id that a kernel has seen as the caller gave it.
  int64_t given_id(int64_t id) const;
  /// Returns how many experts the caller can name.
  uint32_t experts() const {
    return table_.experts == 0 ? context_.setup.options.experts : table_.experts;
  }

 private:
  const CallContext& context_;
  PlacementTable table_{};  ///< of no experts: they live by their numbers
  std::optional<DeviceMemory> words_;
  std::vector<int32_t> expert_at_;  ///< [places]
};

}  // namespace tokenyard::throughput
