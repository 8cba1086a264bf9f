#include "megakernel/trace/trace_codec.hpp"

#include "base/archive.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr ArchiveKind kTraceArchive{.name = "a rank's trace",
                                    .mark = 0x3165636172745974};  // tYtrace1

/// More blocks than any device runs at once. Each has a line in the trace, even without a span.
constexpr uint32_t kWorkersMax = 1 << 16;

void check_numbers(const ArchiveReader& reader, const Trace& trace) {
  reader.require(trace.workers <= kWorkersMax, "workers, at most", kWorkersMax, trace.workers);
  for (const TraceTask& task : trace.tasks)
    for (const TraceWait& wait : task.waits)
      reader.require(wait.event < trace.events.size(), "an event below", trace.events.size(),
                     wait.event);
  for (const TraceSpan& span : trace.spans) {
    reader.require(span.task < trace.tasks.size(), "a task below", trace.tasks.size(), span.task);
    reader.require(span.worker < trace.workers, "a worker below", trace.workers, span.worker);
  }
}

}  // namespace

void visit(auto& archive, MaybeConst<TraceTask> auto& task) {
  archive(task.name, task.type, task.waits);
}
void visit(auto& archive, MaybeConst<TraceSignal> auto& signal) {
  archive(signal.rank, signal.task, signal.dynamic);
}
void visit(auto& archive, MaybeConst<TraceEvent> auto& event) {
  archive(event.carried, event.signals);
}
void visit(auto& archive, MaybeConst<Trace> auto& trace) {
  archive(trace.rank, trace.workers, trace.tasks, trace.events, trace.spans);
}

std::vector<std::byte> TraceCodec::encode(const Trace& trace) {
  ArchiveWriter writer(kTraceArchive);
  writer(trace);
  return writer.sealed();
}

Trace TraceCodec::decode(std::span<const std::byte> bytes, uint32_t from) {
  ArchiveReader reader(kTraceArchive, bytes, from);
  Trace trace;
  reader(trace);
  reader.end();
  check_numbers(reader, trace);
  return trace;
}

}  // namespace tokenyard::megakernel
