/// Rows grouped by expert: after a dispatch, or as they come.
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
  void check_expand(const Received& received, const GroupByExpertOptions& expand) const;
  DispatchArguments checked_by_expert(const DispatchInput& input,
                                      const GroupByExpertOptions& expand) const;
  /// Throws unless every row's number fits 32 bits, however tokens choose their experts.
  void check_grouping(const GroupByExpertOptions& expand) const;
  expert_major::ExpertRowsLayout layout_of(uint32_t rows, uint32_t received,
                                           const RowFormat& format,
                                           const GroupByExpertOptions& expand) const;
  /// Returns the most rows that may come by expert, padding included, unless the caller has said.
  uint32_t most_rows_by_expert(uint32_t received, const GroupByExpertOptions& expand) const;
  /// Returns the rings of each mover, in what a kernel's Shared struct and tail leave of shared
  /// memory.
  StagePlan rings_beside(size_t shared_bytes, size_t tail_bytes, uint32_t row_bytes,
                         uint32_t movers) const;

  CallContext& context_;
  const Setup& setup_;
  const Failures& failures_;
  Dispatcher& dispatcher_;
};

}  // namespace tokenyard::throughput
