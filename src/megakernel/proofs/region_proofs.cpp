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
  RegionProof(std::span<const Graph> graphs, const GraphOrder& order, const FarRanks& far,
              bool words)
      : graphs_(graphs), order_(order), far_(far), tensors_(accesses_of(graphs, words)) {}

  void run() {
    for (const TensorAccesses& tensor : tensors_)
      for_each_conflict(tensor.list, [&](uint32_t a, uint32_t b) { ask(tensor, a, b); });
    // Puts of one task to the same bytes would land in any order.
    if (!graphs_[0].is_once())
      for (const TensorAccesses& tensor : tensors_)
        for (uint32_t i = 0; i < tensor.list.size(); ++i) {
          if (!is_put(tensor, tensor.list[i])) continue;
          puts_.push_back({&tensor, i, i});
          question(tensor, tensor.list[i], tensor.list[i], 1);
        }
    answer();
    for (size_t i = 0; i < conflicts_.size(); ++i) judge(i);
    for (size_t i = 0; i < puts_.size(); ++i) judge_put(i);
    for (const TensorAccesses& tensor : tensors_)
      if (graphs_[tensor.rank].tensors()[tensor.tensor].given == Given::no) judge_producers(tensor);
  }

 private:
  static constexpr size_t kQuestions = 4;

  void ask(const TensorAccesses& tensor, uint32_t a, uint32_t b) {
    const Access &first = tensor.list[a], &second = tensor.list[b];
    if (first.streams || second.streams) throw_streamed(tensor, first, second);
    // A task orders its own accesses, also between iterations; a put lands by itself (run()).
    if (first.rank == second.rank && first.task == second.task) return;
    conflicts_.push_back({&tensor, a, b});
    question(tensor, first, second, 0);
    question(tensor, second, first, 0);
    question(tensor, first, second, 1);
    question(tensor, second, first, 1);
  }

  /// Asks whether `first` has ended before `second` of this iteration, or of the next, begins.
  void question(const TensorAccesses& tensor, const Access& first, const Access& second,
                uint32_t iteration) {
    first_pair_.push_back(pairs_.size());
    const GraphOrder::Node begin = order_.task(second.rank, second.task, iteration);
    if (!is_put(tensor, first)) {
      pairs_.emplace_back(order_.task(first.rank, first.task, 0), begin);
      return;
    }
    // It has landed once an event is complete that its task signals on the owner's rank.
    for (const Signal& signal : graphs_[first.rank].tasks()[first.task].signals)
      if (signal.rank == tensor.rank)
        pairs_.emplace_back(order_.event(tensor.rank, signal.event.id, 0), begin);
  }
  bool is_put(const TensorAccesses& tensor, const Access& access) const {
    return access.kind == Kind::write && far_.between(access.rank, tensor.rank);
  }

  void answer() {
    first_pair_.push_back(pairs_.size());
    const std::vector<bool> holds = order_.precedes(pairs_);
    for (size_t i = 0; i + 1 < first_pair_.size(); ++i)
      answers_.push_back(std::find(holds.begin() + static_cast<ptrdiff_t>(first_pair_[i]),
                                   holds.begin() + static_cast<ptrdiff_t>(first_pair_[i + 1]),
                                   true) !=
                         holds.begin() + static_cast<ptrdiff_t>(first_pair_[i + 1]));
  }

  void judge(size_t conflict) {
    const auto [tensor, a, b] = conflicts_[conflict];
    const bool a_first = answers_[conflict * kQuestions],
               b_first = answers_[conflict * kQuestions + 1];
    const Access &first = tensor->list[a], &second = tensor->list[b];
    if (!a_first && !b_first) {
      // A put first: what its witness lacks is that it has landed.
      const bool turned = is_put(*tensor, second) && !is_put(*tensor, first);
      const Access &one = turned ? second : first, &other = turned ? first : second;
      throw_unordered(fault_of(one, other), *tensor, one, other, "");
    }
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

  void judge_put(size_t put) {
    if (answers_[conflicts_.size() * kQuestions + put]) return;
    const auto [tensor, a, b] = puts_[put];
    throw_unordered(GraphFault::across_iterations, *tensor, tensor->list[a], tensor->list[b],
                    " in the next iteration");
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
         is_put(tensor, first)
             ? fmt::format("and no path from an event of rank {} that the former signals itself "
                           "orders the two: only that shows that what it puts to this other host "
                           "has landed",
                           tensor.rank)
             : "and no path of events and queues orders the two"},
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
  const FarRanks& far_;
  std::vector<TensorAccesses> tensors_;
  std::vector<Conflict> conflicts_, puts_;
  std::vector<GraphOrder::Pair> pairs_;  ///< several per question: one that holds suffices
  std::vector<size_t> first_pair_;       ///< [questions + 1]
  std::vector<bool> answers_;            ///< [conflicts * kQuestions + puts]
  std::map<std::pair<const TensorAccesses*, uint32_t>, std::vector<uint32_t>> produced_;
};

}  // namespace

void prove_regions(std::span<const Graph> graphs, const GraphOrder& order,
                   const GraphOrder& visible, const FarRanks& far) {
  RegionProof(graphs, order, far, true).run();
  RegionProof(graphs, visible, far, false).run();
}

}  // namespace tokenyard::megakernel
