// Errors of a failed run, and of every later call.
#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "megakernel/megakernel_parts.hpp"
#include "megakernel/stall_report.hpp"

namespace tokenyard::megakernel {

/// Throws the object's first error again, with a note that it comes from an earlier call.
void Megakernel::Impl::check_usable() const {
  constexpr const char* kFailed =
      "this megakernel failed in an earlier call; make a new one. It failed in: ";
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const TaskTimeout& error) {
    WaitFacts facts = error.facts;
    facts.phase = kFailed + facts.phase;
    throw TaskTimeout(std::move(facts), error.dump);
  } catch (const PeerTimeout& error) {
    WaitFacts facts = error.facts;
    facts.phase = kFailed + facts.phase;
    throw PeerTimeout(std::move(facts));
  } catch (const PeerLost& error) {
    WaitFacts facts = error.facts;
    facts.phase = kFailed + facts.phase;
    throw PeerLost(std::move(facts));
  } catch (const Cancelled& error) {
    throw Cancelled(kFailed + error.phase);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("megakernel", "a new one, because this one failed in an earlier call",
                          error.what());
  }
}

void Megakernel::Impl::require_started(const char* call) const {
  check_usable();
  if (!running || !fed_run) throw InvalidArgument(call, "a run: call start() first", "none");
}

void Megakernel::Impl::throw_surplus(uint32_t event, uint64_t expected, uint64_t seen) const {
  throw InvalidArgument(
      fmt::format("signals of {} to event '{}'", signallers[event], graph.events()[event].name),
      fmt::format("{} per iteration, by its expect() or dynamic_max", expected),
      fmt::format("{}", seen));
}

/// Checks counters after a run: signals from other ranks are sent without a check.
void Megakernel::Impl::check_counts() {
  for (uint32_t event = 0; event < signallers.size(); ++event) {
    if (signallers[event].empty()) continue;
    const uint64_t need = triggers[event].triggers * finished.load();
    const uint64_t seen = tables->read_counter(event);
    if (seen <= need) continue;
    const uint64_t expected = tables->read_promise(event).signals();
    try {
      throw_surplus(event, expected, expected + seen - need);
    } catch (...) {
      failure = std::current_exception();
      throw;
    }
  }
}

void Megakernel::Impl::throw_failure() {
  const std::span stalls(tables->stalls(), shape.blocks());
  const WaitReport& report = cell.report();
  const StallRecord& stall = stalls[std::min(report.block, shape.blocks() - 1)];
  try {
    cell.check(phase_names(graph, report.phase, stall));
    // Refused: the ranks disagree, or a task exceeds its bound.
    const uint64_t tasks = graph.tasks().size();
    if (stall.what == Stalled::surplus) throw_surplus(stall.event, report.expected, report.seen);
    if (stall.what == Stalled::far_loop)
      throw InvalidArgument(
          fmt::format("end_loop() of task '{}'", graph.tasks()[stall.task].name),
          "this rank, or another one of its host: each host's ranks end their loops themselves",
          fmt::format("rank {}", report.seen));
    if (report.phase < tasks)
      throw InvalidArgument(
          fmt::format("expect() of task '{}'", graph.tasks()[report.phase].name),
          fmt::format("at most {} signals, its event's dynamic_max", report.expected),
          fmt::format("{}", report.seen));
    throw InvalidArgument("iterations of a run", fmt::format("{}", report.expected),
                          fmt::format("{}", report.seen), report.rank);
  } catch (const PeerTimeout& timeout) {
    WaitFacts facts = timeout.facts;
    // All workers time out together, and most of them await each other.
    const StallRecord* cause = origin_of(graph, triggers, queues, stalls);
    if (cause == nullptr && report.phase >= graph.tasks().size()) cause = cause_of(stalls);
    if (cause != nullptr) {
      facts.phase = phase_of(graph, *cause);
      facts.rank = owing_rank(triggers, *cause);
      facts.expected = cause->need;
      facts.seen = cause->have;
    }
    failure = std::make_exception_ptr(TaskTimeout(std::move(facts), dump(graph, stalls)));
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  std::rethrow_exception(failure);
}

}  // namespace tokenyard::megakernel
