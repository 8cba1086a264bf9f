#include "megakernel/graph_codec.hpp"

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "tokenyard/error.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

struct Writer {
  std::vector<std::byte> bytes;

  void raw(const void* from, size_t size) {
    const auto* const begin = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + size);
  }
  void size(size_t value) {
    const auto fixed = static_cast<uint64_t>(value);
    raw(&fixed, sizeof(fixed));
  }
};

struct Reader {
  std::span<const std::byte> bytes;

  void raw(void* to, size_t size) {
    if (size > bytes.size()) throw InternalError("a graph of another rank came cut off");
    if (size > 0) std::memcpy(to, bytes.data(), size);
    bytes = bytes.subspan(size);
  }
  size_t size() {
    uint64_t fixed = 0;
    raw(&fixed, sizeof(fixed));
    if (fixed > bytes.size()) throw InternalError("a graph of another rank came garbled");
    return fixed;
  }
};

/// Regions, waits, signals, numbers: as they lie in memory. All ranks are of one build.
template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

template <Plain T>
void value(Writer& writer, const T& plain) {
  writer.raw(&plain, sizeof(T));
}
template <Plain T>
void value(Reader& reader, T& plain) {
  reader.raw(&plain, sizeof(T));
}

void value(Writer& writer, const std::string& text) {
  writer.size(text.size());
  writer.raw(text.data(), text.size());
}
void value(Reader& reader, std::string& text) {
  text.resize(reader.size());
  reader.raw(text.data(), text.size());
}

template <class Archive>
void value(Archive& archive, auto& options)
  requires requires { options.given; }
{
  value(archive, options.name);
  value(archive, options.bytes);
  value(archive, options.given);
  value(archive, options.words);
}
template <class Archive>
void value(Archive& archive, auto& options)
  requires requires { options.dynamic_max; }
{
  value(archive, options.name);
  value(archive, options.count);
  value(archive, options.dynamic_max);
  value(archive, options.carried);
}

template <class T>
void value(Writer& writer, const std::vector<T>& list);
template <class T>
void value(Reader& reader, std::vector<T>& list);

template <class Archive>
void value(Archive& archive, auto& task)
  requires requires { task.args; }
{
  value(archive, task.name);
  value(archive, task.reads);
  value(archive, task.writes);
  value(archive, task.adds);
  value(archive, task.streams);
  value(archive, task.waits);
  value(archive, task.signals);
  value(archive, task.expects);
  value(archive, task.worker);
  value(archive, task.cost_ns);
  value(archive, task.ahead_bytes);
  value(archive, task.type);
  value(archive, task.args);
}

template <class T>
void value(Writer& writer, const std::vector<T>& list) {
  writer.size(list.size());
  for (const T& item : list) value(writer, item);
}
template <class T>
void value(Reader& reader, std::vector<T>& list) {
  list.resize(reader.size());
  for (T& item : list) value(reader, item);
}

std::string types_of(const TaskSet& set) {
  std::string text;
  for (const TaskType& type : set.types)
    text += std::string(type.name) + " " + std::to_string(type.args_bytes) + "; ";
  return text;
}

}  // namespace

template <class Archive, class GraphType>
void GraphCodec::visit(Archive& archive, GraphType& graph) {
  value(archive, graph.place_);
  value(archive, graph.tensors_);
  value(archive, graph.events_);
  value(archive, graph.nodes_);
  value(archive, graph.loop_);
  value(archive, graph.once_);
}

std::vector<std::byte> GraphCodec::encode(const Graph& graph) {
  Writer writer;
  value(writer, types_of(graph.task_set()));
  visit(writer, graph);
  return std::move(writer.bytes);
}

Graph GraphCodec::decode(std::span<const std::byte> bytes, const TaskSet& set) {
  Reader reader{bytes};
  std::string types;
  value(reader, types);
  if (types != types_of(set))
    throw InvalidGraph(GraphFault::tables_differ,
                       {"this rank's task types: " + types_of(set), "another's: " + types},
                       "all ranks to use the same kernel");
  Graph graph(set, {});
  visit(reader, graph);
  return graph;
}

}  // namespace tokenyard::megakernel
