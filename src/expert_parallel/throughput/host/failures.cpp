#include "expert_parallel/throughput/host/failures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/internode/kernels/phase.hpp"
#include "expert_parallel/throughput/host/no_room.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"

namespace tokenyard::throughput {

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

/// `of_dispatch`: false for a combine.
const char* argument_of(ReadyWord differing, bool of_dispatch) {
  switch (differing) {
    case ReadyWord::route:
      return "route";
    case ReadyWord::format:
      return of_dispatch ? "x" : "y";
    case ReadyWord::scales:
      return "scales";
    default:
      return "call";
  }
}

/// Describes the value of a ready word that differs.
std::string describe(ReadyWord word, uint32_t value) {
  switch (word) {
    case ReadyWord::route:
      return fmt::format("the route of call {}", value);
    case ReadyWord::format: {
      const FormatWord format{value};
      return fmt::format("rows of {} bytes of {}", format.row_bytes(), name_of(format.type()));
    }
    case ReadyWord::scales: {
      const ScalesWord scales{value};
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
  const CallWord call{value};
  return name_of(call.kind()) + (call.weights() == Weights::with ? " with weights" : "");
}

/// The field in which two values of a ready word differ, as numbers for a program.
struct DifferingValues {
  uint64_t expected, seen;

  static DifferingValues of(ReadyWord word, uint32_t expected, uint32_t seen) {
    const auto first_of = [](std::initializer_list<DifferingValues> fields) {
      for (const DifferingValues& field : fields)
        if (field.expected != field.seen) return field;
      return DifferingValues{};
    };
    const auto number = [](auto value) { return static_cast<uint64_t>(value); };
    if (word == ReadyWord::format) {
      const FormatWord a{expected}, b{seen};
      return first_of({{a.row_bytes(), b.row_bytes()}, {number(a.type()), number(b.type())}});
    }
    if (word == ReadyWord::scales) {
      const ScalesWord a{expected}, b{seen};
      return first_of({{a.words(), b.words()},
                       {number(a.type()), number(b.type())},
                       {number(a.order()), number(b.order())},
                       {a.unused(), b.unused()}});
    }
    if (word == ReadyWord::call) {
      const CallWord a{expected}, b{seen};
      return first_of(
          {{number(a.kind()), number(b.kind())}, {number(a.weights()), number(b.weights())}});
    }
    return {expected, seen};
  }
};

/// Returns the values for which a call failed because ranks made different ones.
DifferingValues differing_values(const WaitReport& report) {
  const DifferingWord expected{report.expected}, seen{report.seen};
  return DifferingValues::of(expected.word(), expected.value(), seen.value());
}

/// Returns the values for which a dispatch was refused. An id that is no expert has no counterpart.
DifferingValues refused_values(const Counts& counts) {
  switch (counts.refusal()) {
    case RefusalKind::format:
      return DifferingValues::of(static_cast<ReadyWord>(counts.token()), counts.id_high(),
                                 counts.id_low());
    case RefusalKind::overflow:
      return {counts.id_low(), counts.token()};
    default:
      return {0, uint64_t{counts.id_high()} << 32 | counts.id_low()};
  }
}

}  // namespace

std::vector<std::string> Failures::names_of_phases(uint32_t reported) const {
  std::vector<std::string> names(phase_names().begin(), phase_names().end());
  if (!context_.rails) return names;
  // The other end's host and rail say where to look, and whether its neighbours are silent, too.
  const HostMap& map = context_.rails->map();
  const uint32_t rank = std::min(reported, map.ranks() - 1);
  names.resize(static_cast<size_t>(internode::Phase::counts));
  for (const std::string& name : internode::phase_names())
    names.push_back(
        fmt::format("{} (host {}, rail {})", name, map.host_of[rank], map.place_of[rank]));
  return names;
}

void Failures::check_waits() const {
  const Health& health = *context_.health;
  const uint32_t awaited = health.cell.report().rank;
  try {
    health.cell.check(names_of_phases(awaited), [&](WaitFacts& facts) {
      if (!context_.rails) return;
      facts.rank = context_.rails->culprit_of(facts);
      const uint32_t phase = health.cell.report().phase;
      const std::vector<std::string> names = names_of_phases(facts.rank);
      if (facts.rank == awaited || phase >= names.size()) return;
      facts.phase = fmt::format("{}, for which rank {} waited", names[phase], awaited);
    });
  } catch (const NetworkFault& error) {
    // Those that wait for this rank need not name it.
    if (context_.rails) context_.rails->report(error.facts.peer);
    throw;
  }
}

void Failures::check() const {
  Health& health = *context_.health;
  if (health.cell.failed()) {
    check_waits();
    if (health.cell.report().phase == static_cast<uint32_t>(Phase::dispatch_refusal))
      throw_refusal();
    const WaitReport& report = health.cell.report();
    if (report.phase == expert_major::kTooFewPlaces)
      throw InvalidArgument("rows_max", fmt::format("places for {} rows", report.expected),
                            std::to_string(report.seen));
    throw_mismatch();
  }
  if (health.interrupted)
    throw Cancelled("ExpertParallel: an earlier call was interrupted; create a new object");
}

std::vector<FailedRank> Failures::failed_ranks() const {
  const auto awaited = [](const WaitFacts& facts, FailedRank::Why why, const char* text) {
    return std::vector{FailedRank{.rank = facts.rank,
                                  .why = why,
                                  .phase = facts.phase,
                                  .expected = facts.expected,
                                  .seen = facts.seen,
                                  .waited_s = facts.waited_s,
                                  .text = text}};
  };
  try {
    check();
  } catch (const PeerTimeout& error) {
    return awaited(error.facts, FailedRank::Why::timeout, error.what());
  } catch (const PeerLost& error) {
    return awaited(error.facts, FailedRank::Why::lost, error.what());
  } catch (const InvalidArgument& error) {
    if (!error.rank) return {};
    const WaitReport& report = context_.health->cell.report();
    const DifferingValues values = report.phase == static_cast<uint32_t>(Phase::dispatch_refusal)
                                       ? refused_values(counts_)
                                       : differing_values(report);
    return awaited({.rank = *error.rank,
                    .phase = names_of_phases(report.rank)[report.phase],
                    .expected = values.expected,
                    .seen = values.seen},
                   FailedRank::Why::differs, error.what());
  } catch (const Error&) {
    // No other rank is to blame.
  }
  return {};
}

void Failures::throw_mismatch() const {
  const WaitReport& report = context_.health->cell.report();
  const DifferingWord expected{report.expected}, seen{report.seen};
  const bool of_dispatch = report.phase < static_cast<uint32_t>(Phase::combine_ready);
  throw InvalidArgument(
      argument_of(expected.word(), of_dispatch),
      fmt::format("{} as on rank {}", describe(expected.word(), expected.value()), expected.than()),
      describe(seen.word(), seen.value()), report.rank);
}

void Failures::throw_refusal() const {
  const RefusalKind kind = counts_.refusal();
  const uint32_t rank = counts_.rank(), token = counts_.token();
  if (kind == RefusalKind::overflow)
    throw InvalidArgument("received_tokens_max",
                          fmt::format("places for {} rows", counts_.id_low()),
                          std::to_string(token), rank);
  if (kind == RefusalKind::format) {
    const auto word = static_cast<ReadyWord>(token);
    const auto said = [&](uint32_t value) { return describe(word, value); };
    throw InvalidArgument(
        argument_of(word, true),
        fmt::format("{} as on rank {}", said(counts_.id_high()), context_.setup.first_present),
        said(counts_.id_low()), rank);
  }
  const auto id = static_cast<int64_t>(uint64_t{counts_.id_high()} << 32 | counts_.id_low());
  if (const auto no_room = NoRoom::of(id); no_room && kind == RefusalKind::out_of_range)
    throw InvalidArgument(
        "arena_bytes", fmt::format("room for {} more bytes", uint64_t{no_room->needed_kib} << 10),
        fmt::format("at most {} free in one piece", uint64_t{no_room->free_kib} << 10), rank);
  if (kind == RefusalKind::twice)
    throw InvalidArgument("topk_idx", "each expert at most once per token",
                          fmt::format("expert {} twice in token {}", experts_.given_id(id), token),
                          rank);
  throw InvalidArgument("topk_idx",
                        fmt::format("experts 0 to {}, or -1", context_.setup.options.experts - 1),
                        fmt::format("expert {} in token {}", experts_.given_id(id), token), rank);
}

}  // namespace tokenyard::throughput
