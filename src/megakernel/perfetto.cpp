// A trace as a file for ui.perfetto.dev (Chrome's trace event format).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

namespace {

std::string quoted(const std::string& text) {
  std::string safe = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      safe += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '"' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe + '"';
}

/// Events of one process, the rank; its threads are the workers.
class PerfettoFile {
 public:
  PerfettoFile(uint32_t rank, uint64_t zero_ns) : rank_(rank), zero_ns_(zero_ns) {}

  void name_rank() {
    add("M", 0, "\"name\": \"process_name\", \"args\": {{\"name\": \"rank {}\"}}", rank_);
  }
  void name_worker(uint32_t worker) {
    add("M", worker, "\"name\": \"thread_name\", \"args\": {{\"name\": \"worker {}\"}}", worker);
  }
  void slice(const std::string& name, const std::string& category, const TraceSpan& span,
             uint64_t begin_ns, uint64_t end_ns) {
    add("X", span.worker, "\"name\": {}, \"cat\": {}, {}, \"dur\": {:.3f}, \"args\": {{{}}}",
        quoted(name), quoted(category), at(begin_ns), us(end_ns - begin_ns),
        fmt::format("\"iteration\": {}", span.iteration));
  }
  /// An arrow from the end of a task to the begin of one that awaited it, which may have begun
  /// before the first one's worker had noted the end.
  void flow(const TraceSpan& from, const TraceSpan& to) {
    ++flows_;
    const std::string name = "\"name\": \"signal\", \"cat\": \"event\"";
    add("s", from.worker, "{}, \"id\": {}, {}", name, flows_,
        at(std::min(from.ended_ns, to.begun_ns)));
    add("f", to.worker, "{}, \"bp\": \"e\", \"id\": {}, {}", name, flows_, at(to.begun_ns));
  }
  std::string text() const {
    return "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n" + events_ + "\n]}\n";
  }

 private:
  static double us(uint64_t ns) { return static_cast<double>(ns) * 1e-3; }
  std::string at(uint64_t ns) const { return fmt::format("\"ts\": {:.3f}", us(ns - zero_ns_)); }

  template <class... Values>
  void add(const char* kind, uint32_t worker, fmt::format_string<Values...> format,
           Values&&... values) {
    events_ += events_.empty() ? "" : ",\n";
    events_ += fmt::format("{{\"ph\": \"{}\", \"pid\": {}, \"tid\": {}, ", kind, rank_, worker);
    events_ += fmt::format(format, std::forward<Values>(values)...) + "}";
  }

  uint32_t rank_;
  uint64_t zero_ns_;
  uint64_t flows_ = 0;
  std::string events_;
};

}  // namespace

std::string Trace::perfetto() const {
  std::map<std::pair<uint32_t, uint64_t>, const TraceSpan*> by_task;
  uint64_t zero_ns = UINT64_MAX;
  for (const TraceSpan& span : spans) {
    zero_ns = std::min(zero_ns, span.taken_ns);
    by_task[{span.task, span.iteration}] = &span;
  }
  PerfettoFile file(rank, zero_ns);
  file.name_rank();
  for (uint32_t worker = 0; worker < workers; ++worker) file.name_worker(worker);
  for (const TraceSpan& span : spans) {
    const TraceTask& task = tasks[span.task];
    if (span.begun_ns > span.taken_ns)
      file.slice("wait", "waiting", span, span.taken_ns, span.begun_ns);
    file.slice(task.name, task.type, span, span.begun_ns, span.ended_ns);
    for (const TraceSignal& signal : task.after) {
      const auto from = by_task.find({signal.task, span.iteration - signal.lag});
      if (from != by_task.end()) file.flow(*from->second, span);
    }
  }
  return file.text();
}

}  // namespace tokenyard::megakernel
