/// Groups rows by expert: after a dispatch, or as they arrive.
#pragma once

#include <memory>

#include "expert_parallel/by_expert/expert_rows_layout.hpp"
#include "expert_parallel/throughput/host/dispatcher.hpp"

namespace tokenyard::throughput {

class Grouper {
 public:
  Grouper(CallContext& context, const Failures& failures, Dispatcher& dispatcher)
      : context_(context), setup_(context.setup), failures_(failures), dispatcher_(dispatcher) {}

  ExpertRows group_by_expert(const Received& received, const GroupByExpertOptions& expand,
                             Stream stream);
  RowsByExpert dispatch_by_expert(const DispatchInput& input, const GroupByExpertOptions& expand,
                                  Stream stream);

 private:
  /// Dispatches, then groups: between hosts rows are not grouped as they come.
  RowsByExpert dispatch_then_group(const DispatchInput& input, const GroupByExpertOptions& expand,
                                   Stream stream);
  void check_expand(const Received& received, const GroupByExpertOptions& expand) const;
  DispatchArguments checked_by_expert(const DispatchInput& input,
                                      const GroupByExpertOptions& expand) const;
  /// Throws unless every row number fits in 32 bits, whichever experts tokens choose.
  void check_grouping(const GroupByExpertOptions& expand) const;
  expert_major::ExpertRowsLayout layout_of(uint32_t rows, uint32_t received,
                                           const RowFormat& format,
                                           const GroupByExpertOptions& expand) const;
  /// Returns the most rows by expert that may arrive, padding included, unless the caller gave a
  /// bound.
  uint32_t most_rows_by_expert(uint32_t received, const GroupByExpertOptions& expand) const;
  /// Returns the ring of each mover, given the shared memory that a kernel's Shared struct and tail
  /// leave.
  StagePlan rings_beside(size_t shared_bytes, size_t tail_bytes, uint32_t row_bytes,
                         uint32_t movers) const;

  CallContext& context_;
  const Setup& setup_;
  const Failures& failures_;
  Dispatcher& dispatcher_;
};

}  // namespace tokenyard::throughput
