/// How what a kernel found wrong becomes an exception.
#include <fmt/format.h>

#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"

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
    case CallKind::dispatch_by_expert:
      return "dispatch by expert";
  }
  return fmt::format("call {}", static_cast<uint32_t>(kind));
}

/// `of_dispatch`: else of a combine.
const char* argument_of(HelloWord differing, bool of_dispatch) {
  switch (differing) {
    case HelloWord::route:
      return "route";
    case HelloWord::format:
      return of_dispatch ? "x" : "y";
    case HelloWord::scales:
      return "scales";
    default:
      return "call";
  }
}

/// A differing word of a hello, in words.
std::string describe(uint64_t differing) {
  const auto value = static_cast<uint32_t>(differing);
  switch (static_cast<HelloWord>(differing >> 32)) {
    case HelloWord::route:
      return fmt::format("the route of call {}", value);
    case HelloWord::format: {
      const throughput::FormatWord format{value};
      return fmt::format("rows of {} bytes of {}", format.row_bytes(), name_of(format.type()));
    }
    case HelloWord::scales: {
      const throughput::ScalesWord scales{value};
      return fmt::format("{} words of {} scales by {}{}", scales.words(), name_of(scales.type()),
                         scales.order() == ScaleOrder::rows ? "rows" : "columns",
                         scales.unused() == 0
                             ? ""
                             : fmt::format(", packed exponents of {} groups of channels",
                                           4 * scales.words() - scales.unused()));
    }
    default:
      break;
  }
  const throughput::CallWord call{value};
  return name_of(call.kind()) +
         (call.weights() == throughput::Weights::with ? " with weights" : "");
}

}  // namespace

void ExpertParallel::Parts::check() {
  if (health_->cell.failed()) {
    health_->cell.check(throughput::phase_names());
    if (health_->cell.report().phase == static_cast<uint32_t>(throughput::Phase::dispatch_refusal))
      throw_refusal();
    const WaitReport& report = health_->cell.report();
    if (report.phase == expert_major::kTooFewPlaces)
      throw InvalidArgument("rows_max", fmt::format("places for {} rows", report.expected),
                            std::to_string(report.seen));
    throw_mismatch();
  }
  if (health_->interrupted)
    throw Cancelled("ExpertParallel: an earlier call, which was interrupted; make a new one");
}

/// The ranks did not make the same call.
void ExpertParallel::Parts::throw_mismatch() const {
  const WaitReport& report = health_->cell.report();
  const auto word = static_cast<HelloWord>(report.expected >> 32);
  const bool of_dispatch = report.phase < static_cast<uint32_t>(throughput::Phase::combine_hello);
  const bool of_rows = word == HelloWord::format || word == HelloWord::scales;
  throw InvalidArgument(
      argument_of(word, of_dispatch),
      fmt::format("{} as on rank {}", describe(report.expected), of_rows ? 0 : world.rank()),
      describe(report.seen), report.rank);
}

/// A token that no rank can accept, more rows than a rank has places for, or rows that differ.
void ExpertParallel::Parts::throw_refusal() const {
  const auto kind = static_cast<RefusalKind>(told(record_->refusal));
  const uint32_t rank = told(record_->rank), token = told(record_->token);
  if (kind == RefusalKind::overflow)
    throw InvalidArgument("received_tokens_max",
                          fmt::format("places for {} rows", told(record_->id_low)),
                          std::to_string(token), rank);
  if (kind == RefusalKind::format) {
    const auto word = static_cast<HelloWord>(token);
    const auto said = [&](const uint32_t& value) {
      return describe(throughput::differing(word, told(value)));
    };
    throw InvalidArgument(argument_of(word, true),
                          fmt::format("{} as on rank 0", said(record_->id_high)),
                          said(record_->id_low), rank);
  }
  const auto id =
      static_cast<int64_t>(uint64_t{told(record_->id_high)} << 32 | told(record_->id_low));
  if (kind == RefusalKind::twice)
    throw InvalidArgument("topk_idx", "an expert at most once a token",
                          fmt::format("expert {} twice in token {}", given_id(id), token), rank);
  const uint32_t experts = placement_.experts == 0 ? options.experts : placement_.experts;
  throw InvalidArgument("topk_idx", fmt::format("experts 0 to {}, or -1", experts - 1),
                        fmt::format("expert {} in token {}", given_id(id), token), rank);
}

}  // namespace tokenyard
