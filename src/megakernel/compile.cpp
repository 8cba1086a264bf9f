#include "megakernel/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "megakernel/proofs.hpp"
#include "megakernel/worker_shared.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

namespace {

uint32_t rounded(size_t bytes) {
  return static_cast<uint32_t>((bytes + kPacketAlignment - 1) / kPacketAlignment *
                               kPacketAlignment);
}

template <class T>
void append(std::vector<std::byte>& to, const T& value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof(T));
}

std::vector<std::byte> packet_of(const Graph& graph, uint32_t task, const Compiled& compiled) {
  const Triggers& triggers = compiled.triggers;
  const Graph::TaskNode& node = graph.tasks()[task];
  const uint32_t rank = graph.place().rank;
  // Carried events, and dynamic signals, are left to the bodies of tasks.
  const auto is_counted = [&](const Wait& wait) { return !graph.events()[wait.event.id].carried; };
  const auto is_static = [&](const Signal& signal) {
    return !signal.dynamic && !graph.events()[signal.event.id].carried;
  };
  Packet head{};
  head.task = task;
  head.type = node.type;
  head.waits =
      static_cast<uint32_t>(std::count_if(node.waits.begin(), node.waits.end(), is_counted));
  head.signals =
      static_cast<uint32_t>(std::count_if(node.signals.begin(), node.signals.end(), is_static));
  head.args_at = static_cast<uint32_t>(sizeof(Packet) + head.waits * sizeof(WaitRecord) +
                                       head.signals * sizeof(SignalRecord));
  head.bytes = rounded(head.args_at + node.args.size());
  head.counted = compiled.launches.counts(rank, task);
  if (head.bytes > kPacketBytes)
    throw InvalidGraph(
        GraphFault::packet,
        {task_name(graph, task), fmt::format("has {} waits, {} signals and {} bytes of arguments",
                                             head.waits, head.signals, node.args.size())},
        fmt::format("at most {} bytes for all of them (16 a wait or signal); tasks that signal "
                    "one event together need one wait",
                    kPacketBytes - sizeof(Packet)));
  std::vector<std::byte> bytes;
  append(bytes, head);
  for (const Wait& wait : node.waits) {
    if (!is_counted(wait)) continue;
    const EventTriggers& event = triggers[rank][wait.event.id];
    append(bytes,
           WaitRecord{.event = wait.event.id,
                      .triggers = event.triggers,
                      .lag = wait.lag,
                      .remote = event.remote,
                      .rank = static_cast<uint16_t>(event.remote ? event.remote_rank : rank)});
  }
  for (const Signal& signal : node.signals) {
    if (!is_static(signal)) continue;
    const EventTriggers& event = triggers[signal.rank][signal.event.id];
    append(bytes, SignalRecord{.event = signal.event.id,
                               .rank = static_cast<uint16_t>(signal.rank),
                               .launch = compiled.launches.of(signal.rank, signal.event.id),
                               .count = static_cast<uint16_t>(signal.count),
                               .sys = event.sys,
                               .triggers = event.triggers});
  }
  bytes.insert(bytes.end(), node.args.begin(), node.args.end());
  bytes.resize(head.bytes);
  return bytes;
}

/// Signals that launch a follower say where its packet lies.
void name_followers(Program& program, const Launches& launches, uint32_t rank) {
  for (size_t task = 0; task + 1 < program.positions.size(); ++task) {
    std::byte* const packet = program.packets.data() + program.positions[task] * kPacketAlignment;
    const auto& head = *reinterpret_cast<const Packet*>(packet);
    program.counted += head.counted;
    auto* const signals =
        reinterpret_cast<SignalRecord*>(packet + sizeof(Packet) + head.waits * sizeof(WaitRecord));
    for (uint32_t i = 0; i < head.signals; ++i)
      if (signals[i].launch == Launch::follower)
        signals[i].triggers =
            program.dependents[launches.begin_of(rank, signals[i].event)].place.bits;
  }
}

/// A dynamic run needs schedulers on all ranks, whose queues all ranks know alike.
void check_shapes(std::span<const Shape> shapes) {
  for (uint32_t rank = 0; rank < shapes.size(); ++rank)
    if (shapes[rank].schedulers != shapes[0].schedulers ||
        shapes[rank].event_slots != shapes[0].event_slots)
      throw InvalidGraph(GraphFault::tables_differ,
                         {fmt::format("rank 0 has {} schedulers with queues of {}",
                                      shapes[0].schedulers, shapes[0].event_slots),
                          fmt::format("rank {} has {} of {}", rank, shapes[rank].schedulers,
                                      shapes[rank].event_slots)},
                         "as many schedulers on all ranks");
}

/// Schedulers begin tasks by the counters of events, which carried ones have not, and their kernels
/// need code for it.
void check_schedulable(std::span<const Graph> graphs) {
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    for (uint32_t event = 0; event < graphs[rank].events().size(); ++event)
      if (graphs[rank].events()[event].carried)
        throw InvalidGraph(GraphFault::trigger_count,
                           {event_name(graphs, rank, event),
                            "is carried by the data, which schedulers do not look at"},
                           "a static placement (no schedulers) for graphs with carried events");
    if (!graphs[rank].task_set().scheduled)
      throw InvalidGraph(GraphFault::tables_differ,
                         {fmt::format("rank {} has schedulers", rank),
                          "the kernel of its tasks has no code for them (TaskList::kScheduled)"},
                         "a static placement (no schedulers) for graphs of these tasks");
  }
}

Placement in_order(std::span<const Graph> graphs) {
  Placement placement;
  for (const Graph& graph : graphs) {
    std::vector<uint32_t> all(graph.tasks().size());
    for (uint32_t task = 0; task < all.size(); ++task) all[task] = task;
    placement.queues.push_back({std::move(all)});
  }
  return placement;
}

}  // namespace

Compiled compile(std::span<const Graph> graphs, std::span<const Shape> shapes,
                 std::optional<Placement> placement) {
  check_tables(graphs);
  check_shapes(shapes);
  Compiled compiled{.triggers = count_triggers(graphs), .placement = {}, .launches = {}};
  const bool dynamic = shapes[0].schedulers > 0;
  const GraphOrder events_only(graphs, GraphOrder::Beside::events_only);
  if (placement) {
    compiled.placement = std::move(*placement);
  } else if (dynamic) {
    check_schedulable(graphs);
    prove_acyclic(events_only);
    compiled.placement = in_order(graphs);
    compiled.launches =
        plan_launches(graphs, compiled.triggers, shapes[0].schedulers, shapes[0].event_slots);
  } else {
    prove_acyclic(events_only);
    std::vector<uint32_t> workers;
    for (const Shape& shape : shapes) workers.push_back(shape.workers);
    compiled.placement = place(graphs, events_only, workers);
  }
  const GraphOrder order(graphs,
                         dynamic ? GraphOrder::Beside::barriers : GraphOrder::Beside::queues,
                         &compiled.placement);
  prove_acyclic(order);
  prove_counts_apart(graphs, order);
  if (dynamic) prove_arrivals_apart(graphs, compiled.triggers, order);
  const GraphOrder visible(graphs,
                           dynamic ? GraphOrder::Beside::barriers : GraphOrder::Beside::queues,
                           &compiled.placement, GraphOrder::Carried::left_out);
  prove_regions(graphs, order, visible);
  return compiled;
}

Program make_program(std::span<const Graph> graphs, uint32_t rank, const Shape& shape,
                     const Compiled& compiled) {
  const Graph& graph = graphs[rank];
  Program program;
  program.positions.push_back(0);
  program.queues.push_back(0);
  for (const std::vector<uint32_t>& queue : compiled.placement.queues[rank]) {
    for (const uint32_t task : queue) {
      const std::vector<std::byte> packet = packet_of(graph, task, compiled);
      program.packets.insert(program.packets.end(), packet.begin(), packet.end());
      program.positions.push_back(static_cast<uint32_t>(program.packets.size() / kPacketAlignment));
    }
    program.queues.push_back(static_cast<uint32_t>(program.positions.size() - 1));
  }
  program.event_slots = compiled.launches.event_slots();
  program.dependents = compiled.launches.dependents_of(rank);
  for (Dependent& task : program.dependents)  // A dynamic run's packets lie in the order of tasks.
    task.place =
        PacketPlace::of(program.positions[task.position], program.positions[task.position + 1]);
  name_followers(program, compiled.launches, rank);
  for (uint32_t event = 0; event <= graph.events().size(); ++event) {
    EventRecord& record = program.events.emplace_back();
    record.tasks_at = compiled.launches.begin_of(rank, event);
    if (event == graph.events().size()) break;
    record.triggers = compiled.triggers[rank][event].triggers;
    record.dynamic_max = graph.events()[event].dynamic_max;
    record.remote = compiled.triggers[rank][event].remote;
    record.launch = compiled.launches.of(rank, event);
  }
  for (const Graph::TaskNode& task : graph.tasks()) {
    const TaskType& type = graph.task_set().types[task.type];
    program.scratch_bytes = std::max(program.scratch_bytes, type.scratch_bytes);
    if (type.streams) program.streams = shape.streams;
    if (type.loads_ahead) program.ahead_bytes = std::max(program.ahead_bytes, task.ahead_bytes);
  }
  return program;
}

uint32_t Program::tail_bytes(uint32_t compute_warps) const {
  return aligned_128(scratch_bytes) + aligned_128(ahead_bytes) +
         compute_warps * streams.depth * streams.unit_bytes;
}

uint32_t ring_units_that_fit(const Graph& graph, const Shape& shape, const Capacity& capacity) {
  uint32_t scratch = 0, ahead = 0;
  for (const Graph::TaskNode& task : graph.tasks()) {
    scratch = std::max(scratch, graph.task_set().types[task.type].scratch_bytes);
    ahead = std::max(ahead, task.ahead_bytes);
  }
  const size_t others =
      aligned_128(sizeof(WorkerShared)) + aligned_128(scratch) + aligned_128(ahead);
  uint32_t depth = shape.streams.depth;
  while (depth > 1 && others + size_t{shape.compute_warps} * depth * shape.streams.unit_bytes >
                          capacity.shared_bytes)
    --depth;
  return depth;
}

void check_capacity(const Program& program, const Shape& shape, const Graph& graph,
                    const Capacity& capacity) {
  if (shape.workers == 0 || shape.blocks() > capacity.multiprocessors)
    throw InvalidGraph(
        GraphFault::co_residency,
        {fmt::format("{} workers and {} schedulers of rank {}", shape.workers, shape.schedulers,
                     graph.place().rank),
         fmt::format("but {} blocks can run at once", capacity.multiprocessors)},
        fmt::format("1 to {} blocks, since they wait for one another", capacity.multiprocessors));
  const size_t needed =
      (sizeof(WorkerShared) + 127) / 128 * 128 + size_t{program.tail_bytes(shape.compute_warps)};
  if (needed <= capacity.shared_bytes) return;
  std::string largest = "no task";
  uint32_t bytes = 0;
  for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
    const TaskType& type = graph.task_set().types[graph.tasks()[task].type];
    if (type.scratch_bytes <= bytes) continue;
    bytes = type.scratch_bytes;
    largest = task_name(graph, task);
  }
  throw InvalidGraph(
      GraphFault::shared_memory,
      {fmt::format("{} wants {} bytes of scratch", largest, bytes),
       fmt::format("rings of units take {}, what is loaded ahead {}",
                   shape.compute_warps * program.streams.depth * program.streams.unit_bytes,
                   program.ahead_bytes),
       fmt::format("{} in all with the worker's own, and a block has {}", needed,
                   capacity.shared_bytes)},
      "less scratch, or shorter rings");
}

}  // namespace tokenyard::megakernel
