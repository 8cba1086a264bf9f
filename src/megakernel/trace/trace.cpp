#include "tokenyard/megakernel/trace.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "megakernel/trace/span_index.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// Returns the span that released `span`: the latest-ending of the tasks whose events it awaited
/// and the previous task on its worker.
uint32_t held_up_by(const Trace& trace, const SpanIndex& index, uint32_t span) {
  const TraceSpan& waiting = trace.spans[span];
  uint32_t latest = kNone;
  const auto consider = [&](uint32_t other) {
    if (latest == kNone || trace.spans[other].ended_ns > trace.spans[latest].ended_ns)
      latest = other;
  };
  if (span > 0 && trace.spans[span - 1].worker == waiting.worker) consider(span - 1);
  for (const TraceWait& wait : trace.tasks[waiting.task].waits)
    for (const TraceSignal& signal : trace.events[wait.event].signals) {
      if (signal.rank != trace.rank) continue;  // Recorded by another clock.
      const auto found = index.find(signal.task, waiting.iteration, wait.lag);
      if (found) consider(*found);
    }
  return latest;
}

double us(uint64_t ns) {
  return static_cast<double>(ns) * 1e-3;
}

}  // namespace

TraceSummary Trace::summary() const {
  TraceSummary summary;
  if (spans.empty()) return summary;
  const SpanIndex index(*this);
  uint64_t first_ns = UINT64_MAX;
  uint32_t last = 0;
  for (uint32_t i = 0; i < spans.size(); ++i) {
    summary.busy_ns += spans[i].ended_ns - spans[i].begun_ns;
    summary.waiting_ns += spans[i].begun_ns - spans[i].taken_ns;
    first_ns = std::min(first_ns, spans[i].taken_ns);
    if (spans[i].ended_ns > spans[last].ended_ns) last = i;
  }
  summary.length_ns = spans[last].ended_ns - first_ns;
  std::vector<bool> walked(spans.size(), false);
  for (uint32_t at = last; at != kNone && !walked[at]; at = held_up_by(*this, index, at)) {
    walked[at] = true;
    summary.critical_path.push_back(at);
  }
  std::reverse(summary.critical_path.begin(), summary.critical_path.end());
  return summary;
}

std::vector<uint64_t> Trace::measured_costs() const {
  std::vector<uint64_t> total(tasks.size(), 0), times(tasks.size(), 0);
  for (const TraceSpan& span : spans) {
    total[span.task] += span.ended_ns - span.begun_ns;
    ++times[span.task];
  }
  for (size_t task = 0; task < total.size(); ++task)
    if (times[task] > 0) total[task] = std::max<uint64_t>(total[task] / times[task], 1);
  return total;
}

std::string TraceSummary::text(const std::vector<TraceSpan>& spans,
                               const std::vector<TraceTask>& tasks) const {
  const double all = us(busy_ns) + us(waiting_ns);
  std::string text = fmt::format(
      "{:.1f} us, workers busy {:.1f} us and waiting {:.1f} us ({:.0f} %)\ncritical path:\n",
      us(length_ns), us(busy_ns), us(waiting_ns), all > 0 ? 100 * us(waiting_ns) / all : 0);
  for (const uint32_t i : critical_path)
    text +=
        fmt::format("  {:<24} iteration {:<4} worker {:<4} {:8.2f} us\n", tasks[spans[i].task].name,
                    spans[i].iteration, spans[i].worker, us(spans[i].ended_ns - spans[i].begun_ns));
  return text;
}

}  // namespace tokenyard::megakernel
