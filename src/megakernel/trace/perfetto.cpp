// Traces as a file for ui.perfetto.dev (Chrome's trace event format).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/json_text.hpp"
#include "megakernel/trace/clock_alignment.hpp"
#include "megakernel/trace/span_index.hpp"
#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

namespace {

/// Formats nanoseconds as microseconds, exactly for any size.
std::string shift_us(int64_t ns) {
  const uint64_t size = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

/// Returns the note on one clock for the reader of the file.
std::string published(const ClockShift& shift) {
  const std::string moved = fmt::format("clock shifted by {} us", shift_us(shift.shift_ns));
  std::string text;
  switch (shift.source) {
    case ClockSource::reference:
      return "all times are on this clock";
    case ClockSource::both_sides:
      text = moved + ", the middle of the range that signals allow";
      break;
    case ClockSource::one_side:
      text = moved + ": signals bound it from one side only";
      break;
    case ClockSource::first_task:
      text = moved + ", so that first tasks begin together: no signals bound it";
      break;
  }
  if (shift.at_least_ns) text += fmt::format("; at least {} us", shift_us(*shift.at_least_ns));
  if (shift.at_most_ns) text += fmt::format("; at most {} us", shift_us(*shift.at_most_ns));
  if (shift.contradiction_ns > 0)
    text += fmt::format("; signals contradict each other by {} us: clocks drift",
                        shift_us(static_cast<int64_t>(shift.contradiction_ns)));
  return text;
}

/// A rank's trace, and the offset of its times in the file.
struct TracedProcess {
  const Trace& trace;
  SpanIndex index;
  ClockShift shift;
  uint64_t zero_ns = 0;  ///< origin of the file, on the reference clock

  TracedProcess(const Trace& trace, const ClockShift& shift)
      : trace(trace), index(trace), shift(shift) {}
  /// Returns a time on the reference clock, which may have wrapped around.
  uint64_t moved(uint64_t ns) const { return ns + static_cast<uint64_t>(shift.shift_ns); }
  uint64_t at(uint64_t ns) const { return moved(ns) - zero_ns; }
};

/// Writes one event per line; a rank is a process, its workers are threads.
class PerfettoFile {
 public:
  void name_rank(const TracedProcess& process, bool alone) {
    const uint32_t rank = process.trace.rank;
    if (alone) {
      add("M", rank, 0, "\"name\": \"process_name\", \"args\": {{\"name\": \"rank {}\"}}", rank);
      return;
    }
    const ClockShift& shift = process.shift;
    std::string known = fmt::format("\"clock_moved_us\": {}", shift_us(shift.shift_ns));
    if (shift.at_least_ns) known += ", \"at_least_us\": " + shift_us(*shift.at_least_ns);
    if (shift.at_most_ns) known += ", \"at_most_us\": " + shift_us(*shift.at_most_ns);
    known += ", \"contradiction_us\": " + shift_us(static_cast<int64_t>(shift.contradiction_ns));
    add("M", rank, 0, "\"name\": \"process_name\", \"args\": {{\"name\": \"rank {}\", {}}}", rank,
        known);
    add("M", rank, 0, "\"name\": \"process_labels\", \"args\": {{\"labels\": {}}}",
        json_text(published(shift)));
    add("M", rank, 0, "\"name\": \"process_sort_index\", \"args\": {{\"sort_index\": {}}}", rank);
  }
  void name_worker(uint32_t rank, uint32_t worker) {
    add("M", rank, worker, "\"name\": \"thread_name\", \"args\": {{\"name\": \"worker {}\"}}",
        worker);
  }
  void slice(const TracedProcess& process, const std::string& name, const std::string& category,
             const TraceSpan& span, uint64_t begin_ns, uint64_t end_ns) {
    add("X", process.trace.rank, span.worker,
        "\"name\": {}, \"cat\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": {{{}}}",
        json_text(name), json_text(category), us(process.at(begin_ns)), us(end_ns - begin_ns),
        fmt::format("\"iteration\": {}", span.iteration));
  }
  /// Adds an arrow from the end of a task to the begin of a task that awaited it, which may have
  /// begun before the first one's worker recorded the end. If task bodies await (`carried`), the
  /// arrow ends within the body, as soon as the signal may have arrived.
  void flow(const TracedProcess& from, const TraceSpan& signals, const TracedProcess& to,
            const TraceSpan& awaits, bool carried) {
    ++flows_;
    const std::string name =
        fmt::format("\"name\": \"signal\", \"cat\": \"{}\", \"id\": {}",
                    from.trace.rank == to.trace.rank ? "event" : "remote event", flows_);
    const uint64_t left = from.at(signals.ended_ns), begun = to.at(awaits.begun_ns);
    const uint64_t came =
        carried ? std::clamp(left, begun, std::max(begun, to.at(awaits.ended_ns))) : begun;
    add("s", from.trace.rank, signals.worker, "{}, \"ts\": {:.3f}", name, us(std::min(left, came)));
    add("f", to.trace.rank, awaits.worker, "{}, \"bp\": \"e\", \"ts\": {:.3f}", name, us(came));
  }
  std::string text() const {
    return "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n" + events_ + "\n]}\n";
  }

 private:
  static double us(uint64_t ns) { return static_cast<double>(ns) * 1e-3; }

  template <class... Values>
  void add(const char* kind, uint32_t rank, uint32_t worker, fmt::format_string<Values...> format,
           Values&&... values) {
    events_ += events_.empty() ? "" : ",\n";
    events_ += fmt::format("{{\"ph\": \"{}\", \"pid\": {}, \"tid\": {}, ", kind, rank, worker);
    events_ += fmt::format(format, std::forward<Values>(values)...) + "}";
  }

  uint64_t flows_ = 0;
  std::string events_;
};

/// Finds the tasks that completed an event: for each rank that signals it, the task that ended
/// last. (An arrow from every task would give a million per iteration in which all blocks await one
/// another.)
class LastSignals {
 public:
  struct Last {
    const TracedProcess* of;
    const TraceSpan* span;
  };

  LastSignals(const TracedProcess& to, const std::vector<TracedProcess>& all) : to_(to) {
    for (const TracedProcess& process : all) by_rank_[process.trace.rank] = &process;
  }

  const std::vector<Last>& of(uint32_t event, uint64_t iteration, uint32_t lag) {
    const auto [found, is_new] = known_.try_emplace({event, iteration - lag});
    if (is_new) found->second = find(event, iteration, lag);
    return found->second;
  }

 private:
  std::vector<Last> find(uint32_t event, uint64_t iteration, uint32_t lag) const {
    std::map<uint32_t, Last> last;  // By rank.
    for (const TraceSignal& signal : to_.trace.events[event].signals) {
      const auto from = by_rank_.find(signal.rank);
      if (from == by_rank_.end()) continue;
      const auto place = from->second->index.find(signal.task, iteration, lag);
      if (!place) continue;
      const TraceSpan& span = from->second->trace.spans[*place];
      const auto [known, is_new] = last.try_emplace(signal.rank, Last{from->second, &span});
      if (!is_new && span.ended_ns > known->second.span->ended_ns) known->second.span = &span;
    }
    std::vector<Last> found;
    for (const auto& [rank, of_rank] : last) found.push_back(of_rank);
    return found;
  }

  const TracedProcess& to_;
  std::map<uint32_t, const TracedProcess*> by_rank_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Last>> known_;
};

void add_arrows(PerfettoFile& file, const TracedProcess& to, const TraceSpan& awaits,
                LastSignals& signals) {
  for (const TraceWait& wait : to.trace.tasks[awaits.task].waits)
    for (const LastSignals::Last& last : signals.of(wait.event, awaits.iteration, wait.lag))
      file.flow(*last.of, *last.span, to, awaits, to.trace.events[wait.event].carried);
}

void add_process(PerfettoFile& file, const TracedProcess& process,
                 const std::vector<TracedProcess>& all) {
  const Trace& trace = process.trace;
  file.name_rank(process, all.size() == 1);
  for (uint32_t worker = 0; worker < trace.workers; ++worker) file.name_worker(trace.rank, worker);
  LastSignals signals(process, all);
  for (const TraceSpan& span : trace.spans) {
    const TraceTask& task = trace.tasks[span.task];
    if (span.begun_ns > span.taken_ns)
      file.slice(process, "wait", "waiting", span, span.taken_ns, span.begun_ns);
    file.slice(process, task.name, task.type, span, span.begun_ns, span.ended_ns);
    add_arrows(file, process, span, signals);
  }
}

/// Returns the origin of the file: the time at which the first task was taken.
void find_zero(std::vector<TracedProcess>& all) {
  std::optional<uint64_t> first;
  for (const TracedProcess& process : all)
    for (const TraceSpan& span : process.trace.spans) {
      const uint64_t taken = process.moved(span.taken_ns);
      if (!first || static_cast<int64_t>(taken - *first) < 0) first = taken;
    }
  for (TracedProcess& process : all) process.zero_ns = first.value_or(0);
}

}  // namespace

std::string perfetto(std::span<const Trace> traces) {
  const std::vector<ClockShift> shifts = align_clocks(traces);
  std::vector<TracedProcess> all;
  for (size_t i = 0; i < traces.size(); ++i) all.emplace_back(traces[i], shifts[i]);
  find_zero(all);
  PerfettoFile file;
  for (const TracedProcess& process : all) add_process(file, process, all);
  return file.text();
}

std::string Trace::perfetto() const {
  return megakernel::perfetto(std::span(this, 1));
}

}  // namespace tokenyard::megakernel
