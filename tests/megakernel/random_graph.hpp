/// Valid random graphs: tasks touch random cells of random ranks as if they ran one after another,
/// and events are those that this order needs. The actual order of a run differs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "megakernel/touch_task.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

namespace tokenyard::megakernel {

/// The means that separate iterations.
enum class Pacing : uint32_t {
  once,       ///< one iteration per run
  gated,      ///< a loop event, which all last tasks signal
  pipelined,  ///< lagging waits: iterations overlap
  scheduled,  ///< schedulers alone: dynamic runs on one rank
};

struct RandomGraphOptions {
  uint32_t ranks = 1;
  uint32_t tasks = 10;  ///< of all ranks together
  uint32_t cells = 16;  ///< per rank
  Pacing pacing = Pacing::gated;
  bool dynamic_counts = false;
  bool shares_anywhere = false;  ///< tasks of all ranks signal dynamic events: static runs only
  bool streams = false;
  uint32_t pinned = 0;       ///< workers to which a third of the tasks are pinned; 0: none
  uint32_t last_of_run = 0;  ///< gated: iterations per run, decided on the device
  bool strays = false;       ///< one task writes a cell that it does not declare
  /// [ranks] or empty: one host. Tasks put to cells of other hosts: each such cell has one writer,
  /// and readers of its own rank, of which one comes after the writer.
  std::vector<uint32_t> host_of = {};
};

/// The plan of one task, before it has arguments.
struct TouchPlan {
  struct Cell {
    uint32_t rank, index;
    bool operator<(const Cell& other) const {
      return rank != other.rank ? rank < other.rank : index < other.index;
    }
  };
  struct Seen {
    Cell cell;
    uint32_t writer, iterations;
    uint32_t share, shares;  ///< the share whose cell it is; shares 0: not a share's
  };
  uint32_t rank = 0;
  std::vector<Seen> reads;
  std::vector<Cell> writes;
  std::set<uint32_t> after, after_lagging;  ///< tasks; lagging: of the previous iteration
  uint32_t share = 0, shares = 0;           ///< in a dynamic event
  uint32_t event_rank = 0;                  ///< rank of that event
  uint32_t dynamic_event = 0;               ///< index of that event
  bool receives = false;                    ///< whether the task waits for that event
  bool joins = false;                       ///< waits for one event of all its predecessors
  std::vector<uint32_t> joined_by = {};     ///< tasks whose joint event this one signals
  uint32_t units = 0;                       ///< units that it streams
};

class RandomGraph {
 public:
  RandomGraph(const RandomGraphOptions& options, uint32_t seed)
      : options_(options), random_(seed), cells_(options.ranks) {
    for (auto& of_rank : cells_) of_rank.resize(options.cells);
    for (uint32_t task = 0; task < options.tasks; ++task) plan(task);
    read_puts();
    if (options.dynamic_counts) add_dynamic();
    close_iterations();
    if (options.pacing != Pacing::pipelined) join_some();
    note_followers();
  }

  const RandomGraphOptions& options() const { return options_; }
  size_t cell_bytes() const {
    return (options_.cells + dynamic_events_ * kBurstCells) * kCellWords * sizeof(uint32_t);
  }

  /// Returns the number of cells that ranks of other hosts write.
  uint32_t puts() const {
    uint32_t count = 0;
    for (const auto& of_rank : cells_)
      for (const CellState& state : of_rank) count += state.is_put ? 1 : 0;
    return count;
  }

  /// Returns the first task that writes; with `strays`, it does not declare its last write.
  uint32_t straying() const {
    uint32_t task = 0;
    while (task < plans_.size() && plans_[task].writes.empty()) ++task;
    return task;
  }
  bool has_straying() const { return straying() < plans_.size(); }

  /// Returns one rank's graph. `cells`: [ranks] each rank's cells; `haste`: 0, or a seed for how
  /// long tasks linger and, with `workers`, where they run.
  Graph on(uint32_t rank, const TaskSet& set, TensorMemory& memory,
           const std::vector<TensorView>& cells, Disorder* disorder, uint32_t haste) const {
    Graph graph(set, {.rank = rank, .ranks = options_.ranks});
    const Tensor tensor = graph.tensor({.name = "cells",
                                        .bytes = cell_bytes(),
                                        .given = Given::always,
                                        .places = {cells.begin(), cells.end()}});
    std::vector<uint32_t> constants(kUnits * kUnitWords);
    for (uint32_t i = 0; i < constants.size(); ++i) constants[i] = i / kUnitWords;
    const uint32_t* const stream = placed(memory, constants);
    graph.tensor({.name = "constants",
                  .bytes = constants.size() * 4,
                  .given = Given::always,
                  .places = {ConstTensorView(stream, {constants.size()})}});
    // Task t's event exists on all ranks, whether or not they wait for it.
    for (uint32_t task = 0; task < plans_.size(); ++task)
      graph.event({.name = "after " + std::to_string(task)});
    for (uint32_t task = 0; task < plans_.size(); ++task)
      graph.event({.name = "all before " + std::to_string(task)});
    for (uint32_t i = 0; i < dynamic_events_; ++i)
      graph.event({.name = "dynamic " + std::to_string(i), .dynamic_max = kShares});
    const Event all_done = graph.event({.name = "all done"});
    const Event last = graph.event({.name = "last"});
    if (options_.pacing == Pacing::once) graph.once();
    if (options_.pacing == Pacing::gated) graph.loop_on(last);
    std::mt19937 lingering(haste);
    for (uint32_t task = 0; task < plans_.size(); ++task) {
      const uint32_t drawn = lingering() | 1;
      if (plans_[task].rank == rank)
        add_task(graph, task, tensor, memory, cells, disorder, stream, haste == 0 ? 0 : drawn);
    }
    // One task signals all ranks, so that no rank's next signals can overtake another rank's last
    // ones.
    if (options_.pacing == Pacing::gated && rank == 0) {
      TaskOptions gate{.name = "gate", .waits = {{all_done}}};
      for (uint32_t to = 0; to < options_.ranks; ++to)
        gate.signals.push_back({.event = last, .rank = to});
      graph.add<Touch>({.reads = nullptr,
                        .writes = nullptr,
                        .read_count = 0,
                        .write_count = 0,
                        .writer = static_cast<uint32_t>(plans_.size()),
                        .haste = 0,
                        .disorder = disorder,
                        .event = {},
                        .event_rank = 0,
                        .share = 0,
                        .shares = 0,
                        .stream = nullptr,
                        .units = 0,
                        .last_of_run = options_.last_of_run},
                       std::move(gate));
    }
    return graph;
  }

 private:
  static constexpr uint32_t kNobody = UINT32_MAX, kAfterMax = 12, kShares = 4;
  static constexpr uint32_t kBurstCells = kShares + 1;  ///< the shares' and the counting task's
  static constexpr uint32_t kUnits = 7;
  struct CellState {
    bool is_put = false;  ///< written by a rank of another host
    uint32_t writer = kNobody;
    std::vector<uint32_t> readers = {};  ///< since its last write
    uint32_t first_writer = kNobody;     ///< first writer of an iteration
    std::vector<uint32_t> early = {};    ///< readers before the first writer
  };

  uint32_t below(uint32_t limit) { return random_() % limit; }

  void plan(uint32_t task) {
    TouchPlan plan;
    plan.rank = below(options_.ranks);
    if (options_.streams && below(2) == 0) plan.units = below(kUnits + 1);
    for (uint32_t i = below(4); i > 0; --i) touch(plan, task, false);
    for (uint32_t i = below(3); i > 0; --i) touch(plan, task, true);
    plans_.push_back(std::move(plan));
  }

  /// Adds one cell, unless that would need too many waits.
  void touch(TouchPlan& plan, uint32_t task, bool write) {
    const TouchPlan::Cell cell{below(options_.ranks), below(options_.cells)};
    CellState& state = cells_[cell.rank][cell.index];
    const bool far = are_far(plan.rank, cell.rank);
    if (far && (!write || state.writer != kNobody)) return;
    if (state.is_put && (write || cell.rank != plan.rank)) return;
    // Readers of a cell that may yet be put to are of its own rank.
    if (!options_.host_of.empty() && !write && cell.rank != plan.rank) return;
    std::set<uint32_t> after = plan.after;
    if (state.writer != kNobody) after.insert(state.writer);
    if (write) after.insert(state.readers.begin(), state.readers.end());
    after.erase(task);
    if (after.size() > kAfterMax) return;
    const auto has = [&](const auto& list) {
      return std::any_of(list.begin(), list.end(), [&](const TouchPlan::Cell& other) {
        return !(other < cell) && !(cell < other);
      });
    };
    std::vector<TouchPlan::Cell> read_cells;
    for (const TouchPlan::Seen& seen : plan.reads) read_cells.push_back(seen.cell);
    if (has(plan.writes) || (!write && has(read_cells))) return;
    plan.after = std::move(after);
    if (write) {
      state.is_put = far;
      plan.writes.push_back(cell);
      if (state.first_writer == kNobody) state.first_writer = task;
      state.writer = task;
      state.readers.clear();
    } else {
      plan.reads.push_back({cell, state.writer, 0, 0, 0});
      if (state.writer == kNobody) state.early.push_back(task);
      state.readers.push_back(task);
    }
  }

  bool are_far(uint32_t rank, uint32_t other) const {
    return !options_.host_of.empty() && options_.host_of[rank] != options_.host_of[other];
  }

  /// Adds readers of cells that are put to and not read afterwards: only they show that the put has
  /// landed before the next one.
  void read_puts() {
    for (uint32_t rank = 0; rank < cells_.size(); ++rank)
      for (uint32_t index = 0; index < cells_[rank].size(); ++index) {
        CellState& state = cells_[rank][index];
        if (!state.is_put || !state.readers.empty()) continue;
        TouchPlan plan;
        plan.rank = rank;
        plan.after.insert(state.writer);
        plan.reads.push_back({{rank, index}, state.writer, 0, 0, 0});
        state.readers.push_back(static_cast<uint32_t>(plans_.size()));
        plans_.push_back(std::move(plan));
      }
  }

  /// Adds bursts: one task determines how many of the others will signal, and one waits for these.
  void add_dynamic() {
    for (uint32_t burst = 0; burst < 1 + options_.tasks / 64; ++burst) {
      const uint32_t rank = below(options_.ranks);
      for (uint32_t share = 0; share <= kShares; ++share) {
        TouchPlan plan;
        plan.rank = options_.shares_anywhere && share < kShares ? below(options_.ranks) : rank;
        plan.event_rank = rank;
        plan.share = share;
        plan.shares = kShares;
        plan.writes.push_back(cell_of(rank, share));
        plan.dynamic_event = dynamic_events_;
        // Held back by the receiver of the previous iteration's burst.
        plan.after_lagging.insert(static_cast<uint32_t>(plans_.size()) + kShares + 1 - share);
        plans_.push_back(std::move(plan));
      }
      TouchPlan receiver;
      receiver.rank = rank;
      receiver.receives = true;
      receiver.dynamic_event = dynamic_events_;
      const auto first = static_cast<uint32_t>(plans_.size()) - kShares - 1;
      // Only the dynamic event orders it after the signalling tasks and, in half of the bursts,
      // after the task that counts them.
      if (below(2) == 0) receiver.after.insert(first + kShares);
      for (uint32_t share = 0; share < kShares; ++share)
        receiver.reads.push_back({cell_of(rank, share), first + share, 0, share, kShares});
      receiver.reads.push_back({cell_of(rank, kShares), first + kShares, 0, 0, 0});
      plans_.push_back(std::move(receiver));
      ++dynamic_events_;
    }
  }
  /// Returns the cell of a share of the current burst, or of the task that counts shares.
  TouchPlan::Cell cell_of(uint32_t rank, uint32_t share) const {
    return {rank, options_.cells + dynamic_events_ * kBurstCells + share};
  }

  /// Lets half of the tasks with several predecessors wait for one event, which all of these
  /// signal.
  void join_some() {
    constexpr size_t kSignalsMax = 8;
    for (uint32_t task = 0; task < plans_.size(); ++task) {
      TouchPlan& plan = plans_[task];
      const bool full = std::any_of(plan.after.begin(), plan.after.end(), [&](uint32_t before) {
        return plans_[before].joined_by.size() >= kSignalsMax;
      });
      if (plan.after.size() < 2 || full || below(2) == 0) continue;
      plan.joins = true;
      for (const uint32_t before : plan.after) plans_[before].joined_by.push_back(task);
    }
  }

  /// Connects iterations: early readers see the last writer, and the first accesses follow the last
  /// ones of the previous iteration.
  void close_iterations() {
    for (uint32_t task = 0; task < plans_.size(); ++task)
      for (TouchPlan::Seen& seen : plans_[task].reads) {
        if (seen.writer != kNobody) continue;
        seen.writer = cells_[seen.cell.rank][seen.cell.index].writer;
        seen.iterations = 1;
      }
    if (options_.pacing == Pacing::scheduled) lag_some();
    if (options_.pacing != Pacing::pipelined) return;
    for (const auto& of_rank : cells_)
      for (const CellState& state : of_rank) {
        if (state.writer == kNobody) continue;
        for (const uint32_t early : state.early) lag(early, state.writer);
        lag(state.first_writer, state.writer);
        for (const uint32_t reader : state.readers) lag(state.first_writer, reader);
      }
  }
  /// Lets half of the tasks wait for some task of the previous iteration, which orders them after
  /// no other task.
  void lag_some() {
    for (uint32_t task = 0; task < plans_.size(); ++task)
      if (below(2) == 0) lag(task, below(static_cast<uint32_t>(plans_.size())));
  }
  void lag(uint32_t task, uint32_t after) {
    if (task != after) plans_[task].after_lagging.insert(after);
  }

  /// Fills awaited_ and followed_, once, before ranks' threads read them.
  void note_followers() {
    awaited_.assign(plans_.size(), std::vector<bool>(options_.ranks, false));
    followed_.assign(plans_.size(), false);
    for (const TouchPlan& plan : plans_) {
      for (const uint32_t task : plan.after) {
        followed_[task] = true;
        if (!plan.joins) awaited_[task][plan.rank] = true;
      }
      for (const uint32_t task : plan.after_lagging) awaited_[task][plan.rank] = true;
    }
  }

  void add_task(Graph& graph, uint32_t task, const Tensor& tensor, TensorMemory& memory,
                const std::vector<TensorView>& cells, Disorder* disorder, const uint32_t* stream,
                uint32_t haste) const {
    const TouchPlan& plan = plans_[task];
    const auto at = [&](const TouchPlan::Cell& cell) {
      return Peer<uint32_t>(cells[cell.rank].as<uint32_t>() + cell.index * kCellWords);
    };
    const auto region = [&](const TouchPlan::Cell& cell) {
      constexpr uint64_t kBytes = kCellWords * sizeof(uint32_t);
      return tensor.part(cell.index * kBytes, (cell.index + 1) * kBytes).of(cell.rank);
    };
    TaskOptions options{.name = "task " + std::to_string(task)};
    std::vector<CellRead> reads;
    for (const TouchPlan::Seen& seen : plan.reads) {
      reads.push_back({at(seen.cell), seen.writer, seen.iterations, seen.share, seen.shares});
      options.reads.push_back(region(seen.cell));
    }
    std::vector<Peer<uint32_t>> writes;
    for (const TouchPlan::Cell& cell : plan.writes) {
      writes.push_back(at(cell));
      options.writes.push_back(region(cell));
    }
    if (options_.strays && task == straying()) options.writes.pop_back();
    const auto tasks = static_cast<uint32_t>(plans_.size());
    if (plan.joins)
      options.waits.push_back({{tasks + task}, 0});
    else
      for (const uint32_t before : plan.after) options.waits.push_back({{before}, 0});
    for (const uint32_t after : plan.joined_by)
      options.signals.push_back({.event = {tasks + after}, .rank = plans_[after].rank});
    for (const uint32_t before : plan.after_lagging) options.waits.push_back({{before}, 1});
    for (uint32_t rank = 0; rank < options_.ranks; ++rank)
      if (awaited_[task][rank]) options.signals.push_back({.event = {task}, .rank = rank});
    const Event dynamic{2 * tasks + plan.dynamic_event};
    if (plan.shares > 0 && plan.share == plan.shares) options.expects.push_back(dynamic);
    if (plan.shares > 0 && plan.share < plan.shares)
      options.signals.push_back({.event = dynamic, .rank = plan.event_rank, .dynamic = true});
    if (plan.units > 0) options.streams.push_back({1, 0, plan.units * kUnitWords * 4});
    if (plan.receives) options.waits.push_back({dynamic, 0});
    const Event all_done{2 * tasks + dynamic_events_};
    if (options_.pacing == Pacing::gated && !followed_[task])
      options.signals.push_back({.event = all_done, .rank = 0});
    options.cost_ns = 1000 + haste % 5000;
    if (options_.pinned > 0 && (haste >> 5) % 3 == 0)
      options.worker = (haste >> 8) % options_.pinned;
    graph.add<Touch>({.reads = placed(memory, reads),
                      .writes = placed(memory, writes),
                      .read_count = static_cast<uint32_t>(reads.size()),
                      .write_count = static_cast<uint32_t>(writes.size()),
                      .writer = task,
                      .haste = haste,
                      .disorder = disorder,
                      .event = dynamic,
                      .event_rank = plan.event_rank,
                      .share = plan.share,
                      .shares = plan.shares,
                      .stream = stream,
                      .units = plan.units,
                      .last_of_run = 0},
                     std::move(options));
  }

  template <class T>
  static const T* placed(TensorMemory& memory, const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    const TensorView there = memory.local(values.size() * sizeof(T));
    memory.write(there, ConstTensorView::bytes_at(values.data(), values.size() * sizeof(T)));
    return there.as<const T>();
  }

  RandomGraphOptions options_;
  std::mt19937 random_;
  std::vector<std::vector<CellState>> cells_;
  std::vector<TouchPlan> plans_;
  uint32_t dynamic_events_ = 0;
  std::vector<std::vector<bool>> awaited_;  ///< [tasks][ranks] by a task of that rank
  std::vector<bool> followed_;              ///< [tasks] by one of the same iteration
};

}  // namespace tokenyard::megakernel
