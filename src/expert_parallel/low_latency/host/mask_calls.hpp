/// Masks set by callers, and the readmission of ranks.
#pragma once

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

 private:
  /// Refills staging that these ranks may have written, unmasks them, and ends the batches in
  /// progress. `drained` becomes what these ranks are taken to have drained.
  void readmit(const RankSet& ranks, Drained drained);

  CallContext& context_;
  const Setup& setup_;
};

}  // namespace tokenyard::low_latency
