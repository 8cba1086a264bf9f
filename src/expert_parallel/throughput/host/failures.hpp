/// Turns kernels' findings into exceptions.
#pragma once

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/counts.hpp"

namespace tokenyard::throughput {

class Failures {
 public:
  Failures(CallContext& context, const Counts& counts, const ExpertMap& experts)
      : context_(context), counts_(counts), experts_(experts) {}

  /// Throws the error of a call that has failed by now, in this and every later call.
  void check() const;
  /// Returns the ranks whose failure failed the object; see ExpertParallel::failed_ranks.
  std::vector<FailedRank> failed_ranks() const;
  /// Throws the reason why a dispatch was refused: a token that no rank can accept, more rows than
  /// a rank has places for, or rows that differ among ranks.
  [[noreturn]] void throw_refusal() const;
  /// Runs a call from its launch on; an exception leaves the object failed.
  template <class Body>
  void guard(CallKind kind, Body body) const {
    try {
      body();
      context_.calls.returned(kind);
    } catch (...) {
      context_.health->interrupted = true;
      throw;
    }
  }

 private:
  /// Returns the phases' names, with the place of the rank that an error names.
  std::vector<std::string> names_of_phases(uint32_t rank) const;
  /// Throws the error of a wait that has failed, if one has.
  void check_waits() const;
  /// Throws that the ranks made different calls.
  [[noreturn]] void throw_mismatch() const;

  CallContext& context_;
  const Counts& counts_;
  const ExpertMap& experts_;
};

}  // namespace tokenyard::throughput
