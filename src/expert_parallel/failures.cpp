/// How what a kernel found wrong becomes an exception.
#include <fmt/format.h>

#include "expert_parallel/exchange.hpp"
#include "expert_parallel/throughput/phase.hpp"

namespace tokenyard {

using throughput::CallKind;
using throughput::HelloWord;
using throughput::RefusalKind;

namespace {

std::string name_of(CallKind kind) {
  switch (kind) {
    case CallKind::dispatch:
      return "dispatch";
    case CallKind::dispatch_again:
      return "dispatch on a known route";
    case CallKind::combine:
      return "combine";
  }
  return fmt::format("call {}", static_cast<uint32_t>(kind));
}

/// A differing word of a hello, in words.
std::string describe(uint64_t differing) {
  const auto value = static_cast<uint32_t>(differing);
  if (static_cast<HelloWord>(differing >> 32) == HelloWord::route)
    return fmt::format("the route of call {}", value);
  const throughput::CallWord call{value};
  return name_of(call.kind()) +
         (call.weights() == throughput::Weights::with ? " with weights" : "");
}

}  // namespace

void ExpertParallel::Parts::check() {
  if (health_->cell.failed()) {
    health_->cell.check(throughput::phase_names());
    throw_mismatch();
  }
  if (health_->interrupted)
    throw InternalError("ExpertParallel: a call of this object was interrupted; make a new one");
}

/// The ranks did not make the same call.
void ExpertParallel::Parts::throw_mismatch() const {
  const WaitReport& report = health_->cell.report();
  const bool route = static_cast<HelloWord>(report.expected >> 32) == HelloWord::route;
  throw InvalidArgument(route ? "route" : "call",
                        fmt::format("{} as on rank {}", describe(report.expected), world.rank()),
                        describe(report.seen), report.rank);
}

/// A token that no rank can accept.
void ExpertParallel::Parts::throw_refusal() const {
  const auto kind = static_cast<RefusalKind>(told(record_->refusal));
  const uint32_t rank = told(record_->rank), token = told(record_->token);
  const auto id =
      static_cast<int64_t>(uint64_t{told(record_->id_high)} << 32 | told(record_->id_low));
  if (kind == RefusalKind::twice)
    throw InvalidArgument("topk_idx", "an expert at most once a token",
                          fmt::format("expert {} twice in token {}", id, token), rank);
  throw InvalidArgument("topk_idx", fmt::format("experts 0 to {}, or -1", options.experts - 1),
                        fmt::format("expert {} in token {}", id, token), rank);
}

}  // namespace tokenyard
