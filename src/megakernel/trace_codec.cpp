// A header of three words (what this is, how many bytes follow, their checksum), then the trace's
// fields in their order; lists after their lengths. All ranks are of one build.
#include "megakernel/trace_codec.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/fnv1a.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr uint64_t kTraceMagic = 0x3165636172745974;  // "tYtrace1"
using TraceHeader = std::array<uint64_t, 3>;

template <class T>
concept Packed = std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;

void check_trace(bool right, const char* what, uint64_t expected, uint64_t seen) {
  if (!right)
    throw InternalError(
        fmt::format("a rank's trace came garbled: {}: expected {}, got {}", what, expected, seen));
}

struct TraceWriter {
  std::vector<std::byte> bytes;

  template <Packed T>
  void number(const T& value) {
    raw(&value, sizeof(value));
  }
  void flag(bool value) { number(static_cast<uint8_t>(value)); }
  void text(const std::string& value) {
    number(uint64_t{value.size()});
    raw(value.data(), value.size());
  }
  template <class T>
  void list(const std::vector<T>& items, auto each) {
    number(uint64_t{items.size()});
    for (const T& item : items) each(item);
  }

 private:
  void raw(const void* from, size_t size) {
    const auto* const begin = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + size);
  }
};

struct TraceReader {
  std::span<const std::byte> bytes;

  template <Packed T>
  void number(T& value) {
    raw(&value, sizeof(value));
  }
  void flag(bool& value) {
    uint8_t byte = 0;
    number(byte);
    check_trace(byte <= 1, "a flag, at most", 1, byte);
    value = byte == 1;
  }
  void text(std::string& value) {
    value.resize(length());
    raw(value.data(), value.size());
  }
  template <class T>
  void list(std::vector<T>& items, auto each) {
    const uint64_t count = length();
    for (uint64_t i = 0; i < count; ++i) each(items.emplace_back());
  }

 private:
  /// No item takes less than a byte.
  uint64_t length() {
    uint64_t count = 0;
    number(count);
    check_trace(count <= bytes.size(), "a length, at most", bytes.size(), count);
    return count;
  }
  void raw(void* to, size_t size) {
    check_trace(size <= bytes.size(), "bytes to come", size, bytes.size());
    if (size > 0) std::memcpy(to, bytes.data(), size);
    bytes = bytes.subspan(size);
  }
};

/// For reading and for writing alike.
template <class Archive, class TraceType>
void visit_trace(Archive& archive, TraceType& trace) {
  archive.number(trace.rank);
  archive.number(trace.workers);
  archive.list(trace.tasks, [&](auto& task) {
    archive.text(task.name);
    archive.text(task.type);
    archive.list(task.waits, [&](auto& wait) { archive.number(wait); });
  });
  archive.list(trace.events, [&](auto& event) {
    archive.flag(event.carried);
    archive.list(event.signals, [&](auto& signal) {
      archive.number(signal.rank);
      archive.number(signal.task);
      archive.flag(signal.dynamic);
    });
  });
  archive.list(trace.spans, [&](auto& span) { archive.number(span); });
}

void check_numbers(const Trace& trace) {
  for (const TraceTask& task : trace.tasks)
    for (const TraceWait& wait : task.waits)
      check_trace(wait.event < trace.events.size(), "an event below", trace.events.size(),
                  wait.event);
  for (const TraceSpan& span : trace.spans) {
    check_trace(span.task < trace.tasks.size(), "a task below", trace.tasks.size(), span.task);
    check_trace(span.worker < trace.workers, "a worker below", trace.workers, span.worker);
  }
}

}  // namespace

std::vector<std::byte> TraceCodec::encode(const Trace& trace) {
  TraceWriter writer;
  writer.number(TraceHeader{});
  visit_trace(writer, trace);
  const auto body = std::span<const std::byte>(writer.bytes).subspan(sizeof(TraceHeader));
  const TraceHeader header{kTraceMagic, body.size(), fnv1a(body)};
  std::memcpy(writer.bytes.data(), header.data(), sizeof(header));
  return std::move(writer.bytes);
}

Trace TraceCodec::decode(std::span<const std::byte> bytes) {
  TraceReader reader{bytes};
  TraceHeader header{};
  reader.number(header);
  check_trace(header[0] == kTraceMagic, "the mark of a trace", kTraceMagic, header[0]);
  check_trace(header[1] == reader.bytes.size(), "bytes", header[1], reader.bytes.size());
  const uint64_t checksum = fnv1a(reader.bytes);
  check_trace(header[2] == checksum, "a checksum", header[2], checksum);
  Trace trace;
  visit_trace(reader, trace);
  check_trace(reader.bytes.empty(), "bytes after the last span", 0, reader.bytes.size());
  check_numbers(trace);
  return trace;
}

}  // namespace tokenyard::megakernel
