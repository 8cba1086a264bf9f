#include "megakernel/graph_codec.hpp"

#include <string>

#include "base/archive.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

constexpr ArchiveKind kGraphArchive{.name = "a rank's graph",
                                    .mark = 0x3168706172675974};  // tYgraph1

std::string types_of(const TaskSet& set) {
  std::string text;
  for (const TaskType& type : set.types)
    text += std::string(type.name) + " " + std::to_string(type.args_bytes) + "; ";
  return text;
}

}  // namespace

void visit(auto& archive, MaybeConst<TensorOptions> auto& tensor) {
  archive(tensor.name, tensor.bytes, tensor.given, tensor.words);
}
void visit(auto& archive, MaybeConst<EventOptions> auto& event) {
  archive(event.name, event.count, event.dynamic_max, event.carried);
}
void visit(auto& archive, MaybeConst<Region> auto& region) {
  archive(region.tensor, region.begin, region.end, region.rank);
}
void visit(auto& archive, MaybeConst<Signal> auto& signal) {
  archive(signal.event, signal.rank, signal.count, signal.dynamic);
}
void visit(auto& archive, MaybeConst<Graph::TaskNode> auto& task) {
  archive(task.name, task.reads, task.writes, task.adds, task.streams, task.waits, task.signals,
          task.expects, task.worker, task.cost_ns, task.ahead_bytes, task.type, task.args);
}

template <class Archive, class GraphType>
void GraphCodec::visit(Archive& archive, GraphType& graph) {
  archive(graph.place_, graph.tensors_, graph.events_, graph.nodes_, graph.loop_, graph.once_);
}

std::vector<std::byte> GraphCodec::encode(const Graph& graph) {
  ArchiveWriter writer(kGraphArchive);
  writer(types_of(graph.task_set()));
  visit(writer, graph);
  return writer.sealed();
}

Graph GraphCodec::decode(std::span<const std::byte> bytes, const TaskSet& set, uint32_t from) {
  ArchiveReader reader(kGraphArchive, bytes, from);
  std::string types;
  reader(types);
  if (types != types_of(set))
    throw InvalidGraph(GraphFault::tables_differ,
                       {"this rank's task types: " + types_of(set),
                        "those of rank " + std::to_string(from) + ": " + types},
                       "the same kernel on all ranks");
  Graph graph(set, {});
  visit(reader, graph);
  reader.end();
  try {
    graph.check_all_tasks();
  } catch (const InvalidArgument& error) {
    throw InternalError(
        fmt::format("{} from rank {} is corrupted: {}", kGraphArchive.name, from, error.what()));
  }
  return graph;
}

}  // namespace tokenyard::megakernel
