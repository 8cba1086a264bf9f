// prove_regions: conflicting accesses to the same bytes, and reads of bytes never written.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "megakernel/proofs/proofs.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

enum class Kind : uint8_t { read, write, add };

struct Access {
  uint64_t begin, end;
  Kind kind;
  uint32_t rank, task;  ///< that accesses them
  bool streams = false;
};

/// All accesses to one rank's copy of one tensor.
struct TensorAccesses {
  uint32_t rank, tensor;
  std::vector<Access> list;
};

struct Conflict {
  const TensorAccesses* tensor;
  uint32_t a, b;  ///< indices in its list, in order of declaration
};

/// Returns all accesses to tensors of words, or to all other tensors.
std::vector<TensorAccesses> accesses_of(std::span<const Graph> graphs, bool words) {
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Access>> found;
  for (const Graph& graph : graphs)
    for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
      const auto note = [&](const std::vector<Region>& regions, Kind kind, bool streams) {
        for (const Region& region : regions)
          if (region.begin < region.end && graphs[0].tensors()[region.tensor].words == words)
            found[{region.rank, region.tensor}].push_back(
                {region.begin, region.end, kind, graph.place().rank, task, streams});
      };
      const Graph::TaskNode& node = graph.tasks()[task];
      note(node.reads, Kind::read, false);
      note(node.streams, Kind::read, true);
      note(node.writes, Kind::write, false);
      note(node.adds, Kind::add, false);
    }
  std::vector<TensorAccesses> all;
  for (auto& [place, list] : found)
    all.push_back({.rank = place.first, .tensor = place.second, .list = std::move(list)});
  return all;
}

/// Calls `pair(a, b)` for overlapping accesses, unless both read or both add.
template <class Pair>
void for_each_conflict(const std::vector<Access>& list, Pair pair) {
  std::vector<uint32_t> by_begin(list.size());
  for (uint32_t i = 0; i < list.size(); ++i) by_begin[i] = i;
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [&](uint32_t a, uint32_t b) { return list[a].begin < list[b].begin; });
  std::vector<uint32_t> open[3];  // By kind: readers never conflict with readers.
  for (const uint32_t now : by_begin) {
    for (uint32_t kind = 0; kind < 3; ++kind) {
      const auto other = static_cast<Kind>(kind);
      if (other == list[now].kind && other != Kind::write) continue;
      std::erase_if(open[kind], [&](uint32_t old) { return list[old].end <= list[now].begin; });
      for (const uint32_t old : open[kind]) pair(std::min(old, now), std::max(old, now));
    }
    open[static_cast<uint32_t>(list[now].kind)].push_back(now);
  }
}

std::string bytes_text(std::span<const Graph> graphs, const TensorAccesses& accesses,
                       uint64_t begin, uint64_t end) {
  return fmt::format("bytes [{}, {}) of tensor '{}' of rank {}", begin, end,
                     graphs[accesses.rank].tensors()[accesses.tensor].name, accesses.rank);
}

const char* verb(Kind kind) {
  return kind == Kind::read ? "reads" : kind == Kind::write ? "writes" : "adds to";
}

GraphFault fault_of(const Access& first, const Access& second) {
  if (second.kind == Kind::read) return GraphFault::read_after_write;
  return first.kind == Kind::read ? GraphFault::write_after_read : GraphFault::write_after_write;
}

class RegionProof {
 public:
  RegionProof(std::span<const Graph> graphs, const GraphOrder& order, bool words)
      : graphs_(graphs), order_(order), tensors_(accesses_of(graphs, words)) {}

  void run() {
    for (const TensorAccesses& tensor : tensors_)
      for_each_conflict(tensor.list, [&](uint32_t a, uint32_t b) { ask(tensor, a, b); });
    answers_ = order_.precedes(pairs_);
    for (size_t i = 0; i < conflicts_.size(); ++i) judge(i);
    for (const TensorAccesses& tensor : tensors_)
      if (graphs_[tensor.rank].tensors()[tensor.tensor].given == Given::no) judge_producers(tensor);
  }

 private:
  static constexpr size_t kQuestions = 4;

  void ask(const TensorAccesses& tensor, uint32_t a, uint32_t b) {
    const Access &first = tensor.list[a], &second = tensor.list[b];
    if (first.streams || second.streams) throw_streamed(tensor, first, second);
    // A task orders its own accesses, also between iterations.
    if (first.rank == second.rank && first.task == second.task) return;
    conflicts_.push_back({&tensor, a, b});
    const auto at = [&](const Access& access, uint32_t iteration) {
      return order_.task(access.rank, access.task, iteration);
    };
    pairs_.emplace_back(at(first, 0), at(second, 0));
    pairs_.emplace_back(at(second, 0), at(first, 0));
    pairs_.emplace_back(at(first, 0), at(second, 1));
    pairs_.emplace_back(at(second, 0), at(first, 1));
  }

  void judge(size_t conflict) {
    const auto [tensor, a, b] = conflicts_[conflict];
    const bool a_first = answers_[conflict * kQuestions],
               b_first = answers_[conflict * kQuestions + 1];
    const Access &first = tensor->list[a], &second = tensor->list[b];
    if (!a_first && !b_first) throw_unordered(fault_of(first, second), *tensor, first, second, "");
    // Each must also precede the other's repetition in the next iteration.
    if (!graphs_[0].is_once() && !answers_[conflict * kQuestions + 2])
      throw_unordered(GraphFault::across_iterations, *tensor, first, second,
                      " in the next iteration");
    if (!graphs_[0].is_once() && !answers_[conflict * kQuestions + 3])
      throw_unordered(GraphFault::across_iterations, *tensor, second, first,
                      " in the next iteration");
    if (a_first && second.kind == Kind::read) produced_[{tensor, b}].push_back(a);
    if (b_first && first.kind == Kind::read) produced_[{tensor, a}].push_back(b);
  }

  /// Checks that every byte read has an earlier writer in the same iteration.
  void judge_producers(const TensorAccesses& tensor) {
    for (uint32_t i = 0; i < tensor.list.size(); ++i) {
      const Access& reader = tensor.list[i];
      if (reader.kind != Kind::read) continue;
      std::vector<std::pair<uint64_t, uint64_t>> written;
      const auto found = produced_.find({&tensor, i});
      if (found != produced_.end())
        for (const uint32_t writer : found->second)
          written.emplace_back(tensor.list[writer].begin, tensor.list[writer].end);
      // The task orders its own writes itself.
      for (const Access& own : tensor.list)
        if (own.rank == reader.rank && own.task == reader.task && own.kind == Kind::write)
          written.emplace_back(own.begin, own.end);
      std::sort(written.begin(), written.end());
      uint64_t known = reader.begin;
      for (const auto& [begin, end] : written)
        if (begin <= known) known = std::max(known, end);
      if (known >= reader.end) continue;
      throw InvalidGraph(GraphFault::no_producer,
                         {task_name(graphs_[reader.rank], reader.task),
                          "reads " + bytes_text(graphs_, tensor, known, reader.end),
                          "which no earlier task writes"},
                         "an earlier task that writes them, or Given::always");
    }
  }

  [[noreturn]] void throw_unordered(GraphFault fault, const TensorAccesses& tensor,
                                    const Access& first, const Access& second,
                                    const std::string& when) const {
    throw InvalidGraph(
        fault,
        {fmt::format("{} {} {}", task_name(graphs_[first.rank], first.task), verb(first.kind),
                     bytes_text(graphs_, tensor, std::max(first.begin, second.begin),
                                std::min(first.end, second.end))),
         fmt::format("{} {} them{}", task_name(graphs_[second.rank], second.task),
                     verb(second.kind), when),
         "and no path of events and queues orders the two"},
        "an event that the later task awaits");
  }

  [[noreturn]] void throw_streamed(const TensorAccesses& tensor, const Access& first,
                                   const Access& second) const {
    const Access& loads = first.streams ? first : second;
    const Access& writes = first.streams ? second : first;
    throw InvalidGraph(
        GraphFault::read_after_write,
        {fmt::format("{} loads {} ahead of its waits", task_name(graphs_[loads.rank], loads.task),
                     bytes_text(graphs_, tensor, std::max(first.begin, second.begin),
                                std::min(first.end, second.end))),
         fmt::format("{} {} them", task_name(graphs_[writes.rank], writes.task),
                     verb(writes.kind))},
        "streams only from memory that no task writes");
  }

  std::span<const Graph> graphs_;
  const GraphOrder& order_;
  std::vector<TensorAccesses> tensors_;
  std::vector<Conflict> conflicts_;
  std::vector<GraphOrder::Pair> pairs_;  ///< [conflicts * kQuestions]
  std::vector<bool> answers_;
  std::map<std::pair<const TensorAccesses*, uint32_t>, std::vector<uint32_t>> produced_;
};

}  // namespace

void prove_regions(std::span<const Graph> graphs, const GraphOrder& order,
                   const GraphOrder& visible) {
  RegionProof(graphs, order, true).run();
  RegionProof(graphs, visible, false).run();
}

}  // namespace tokenyard::megakernel
