/// Which ranks take part and where experts are: masks set by callers, ranks that are evicted or
/// admitted, and expert maps.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard::low_latency {

class MaskCalls {
 public:
  explicit MaskCalls(CallContext& context) : context_(context), setup_(context.setup) {}

  void write_mask(const TensorView& out, Stream stream);
  void update_mask(uint32_t rank, bool masked);
  void clear_mask();
  uint32_t epoch() const;
  void restart(uint32_t epoch);
  void set_expert_map(std::span<const int32_t> expert_at);
  void evict(const std::vector<uint32_t>& ranks, std::optional<uint32_t> epoch);
  std::vector<uint32_t> admit();

 private:
  std::set<uint32_t> all_ranks() const;
  /// Throws InvalidArgument unless `rank` is another rank.
  void require_other(uint32_t rank) const;
  /// Masks the ranks that do not live, and waits until that is done.
  void mask_the_dead();
  /// Refills staging that these ranks may have written, unmasks them, and ends the batches in
  /// progress. `drained` becomes what these ranks are taken to have drained.
  void readmit(const std::set<uint32_t>& ranks, Drained drained);

  CallContext& context_;
  const Setup& setup_;
};

}  // namespace tokenyard::low_latency
