/// How what a kernel found wrong becomes an exception.
#pragma once

#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/counts.hpp"
#include "expert_parallel/throughput/host/expert_map.hpp"

namespace tokenyard::throughput {

class Failures {
 public:
  Failures(const CallContext& context, const Counts& counts, const ExpertMap& experts)
      : context_(context), counts_(counts), experts_(experts) {}

  /// Throws the error of a call that has failed by now; so does every later check.
  void check() const;
  /// Returns the ranks whose failure failed the object; see ExpertParallel::failed_ranks.
  std::vector<FailedRank> failed_ranks() const;
  /// Throws what a dispatch refused: a token that no rank can accept, more rows than a rank has
  /// places for, or rows that differ.
  [[noreturn]] void throw_refusal() const;
  /// Runs a call from its launch on: an exception from there leaves the object failed.
  template <class Body>
  void guard(Body body) const {
    try {
      body();
    } catch (...) {
      context_.health->interrupted = true;
      throw;
    }
  }

 private:
  /// The ranks did not make the same call.
  [[noreturn]] void throw_mismatch() const;

  const CallContext& context_;
  const Counts& counts_;
  const ExpertMap& experts_;
};

}  // namespace tokenyard::throughput
