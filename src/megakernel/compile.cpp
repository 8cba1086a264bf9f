#include "megakernel/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "megakernel/kernels/worker_shared.hpp"
#include "megakernel/proofs/proofs.hpp"
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

uint16_t remote_of(const EventTriggers& event) {
  if (!event.remote) return 0;
  return event.others ? WaitRecord::kSomeRanks : WaitRecord::kOneRank;
}

std::vector<std::byte> packet_of(const Graph& graph, uint32_t task, const Compiled& compiled,
                                 const FarRanks& far) {
  const Triggers& triggers = compiled.triggers;
  const Graph::TaskNode& node = graph.tasks()[task];
  const uint32_t rank = graph.place().rank;
  const NetworkPlan* const network = compiled.network.empty() ? nullptr : &compiled.network[rank];
  const std::vector<uint32_t> to_network =
      network == nullptr ? std::vector<uint32_t>{} : network->signals_of(task);
  const uint32_t read = network == nullptr ? kNoEvent : network->read[task];
  // Task bodies handle carried events and dynamic signals.
  const auto is_counted = [&](const Wait& wait) { return !graph.events()[wait.event.id].carried; };
  const auto is_static = [&](const Signal& signal) {
    return !signal.dynamic && !graph.events()[signal.event.id].carried &&
           !far.between(rank, signal.rank);
  };
  Packet head{};
  head.task = task;
  head.type = node.type;
  head.waits =
      static_cast<uint32_t>(std::count_if(node.waits.begin(), node.waits.end(), is_counted)) +
      (read == kNoEvent ? 0 : 1);
  head.signals =
      static_cast<uint32_t>(std::count_if(node.signals.begin(), node.signals.end(), is_static)) +
      static_cast<uint32_t>(to_network.size());
  head.args_at = static_cast<uint32_t>(sizeof(Packet) + head.waits * sizeof(WaitRecord) +
                                       head.signals * sizeof(SignalRecord));
  head.bytes = rounded(head.args_at + node.args.size());
  head.counted = compiled.launches.counts(rank, task);
  if (head.bytes > kPacketBytes)
    throw InvalidGraph(
        GraphFault::packet,
        {task_name(graph, task), fmt::format("has {} waits, {} signals and {} bytes of arguments",
                                             head.waits, head.signals, node.args.size())},
        fmt::format("at most {} bytes for all of them (16 per wait or signal); tasks that signal "
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
                      .remote = remote_of(event),
                      .rank = static_cast<uint16_t>(event.remote ? event.remote_rank : rank)});
  }
  if (read != kNoEvent)
    append(bytes, WaitRecord{.event = read,
                             .triggers = triggers[rank][read].triggers,
                             .lag = 1,
                             .remote = 0,
                             .rank = static_cast<uint16_t>(rank)});
  for (const uint32_t event : to_network)
    append(bytes, SignalRecord{.event = event,
                               .rank = static_cast<uint16_t>(rank),
                               .count = 1,
                               .sys = 0,
                               .follows = 0});
  for (uint32_t i = 0; i < node.signals.size(); ++i) {
    const Signal& signal = node.signals[i];
    if (!is_static(signal)) continue;
    const bool followed = compiled.launches.is_followed(rank, task, i);
    append(bytes, SignalRecord{.event = signal.event.id,
                               .rank = static_cast<uint16_t>(signal.rank),
                               .count = static_cast<uint16_t>(signal.count),
                               .sys = triggers[signal.rank][signal.event.id].sys,
                               .follows = followed ? 1u : 0u});
  }
  bytes.insert(bytes.end(), node.args.begin(), node.args.end());
  bytes.resize(head.bytes);
  return bytes;
}

/// Places a dynamic run's packets at equal distances, in queue order, so that a task's position
/// gives the address of its packet.
void space_out(Program& program, uint32_t rank) {
  const auto tasks = static_cast<uint32_t>(program.positions.size() - 1);
  for (uint32_t i = 0; i < tasks; ++i)
    program.packet_units =
        std::max(program.packet_units, program.positions[i + 1] - program.positions[i]);
  // A rank without tasks expects an empty packet, whose task never arrives.
  if (tasks == 0) program.packet_units = sizeof(Packet) / kPacketAlignment;
  check_packet_places(rank, tasks, program.packet_units);
  const size_t bytes = size_t{program.packet_units} * kPacketAlignment;
  std::vector<std::byte> packets(std::max<size_t>(tasks, 1) * bytes);
  for (uint32_t i = 0; i < tasks; ++i)
    std::copy(program.packets.begin() + size_t{program.positions[i]} * kPacketAlignment,
              program.packets.begin() + size_t{program.positions[i + 1]} * kPacketAlignment,
              packets.begin() + i * bytes);
  program.packets = std::move(packets);
  for (uint32_t i = 0; i <= tasks; ++i) program.positions[i] = i * program.packet_units;
}

/// Writes the place of each task's follower into its packet.
void name_followers(Program& program, const Launches& launches, uint32_t rank,
                    const std::vector<PacketPlace>& places) {
  for (size_t task = 0; task + 1 < program.positions.size(); ++task) {
    std::byte* const packet =
        program.packets.data() + size_t{program.positions[task]} * kPacketAlignment;
    auto& head = *reinterpret_cast<Packet*>(packet);
    program.counted += head.counted;
    for (uint32_t i = 0; i < head.signals; ++i) {
      const SignalRecord& signal = head.signal_records()[i];
      if (signal.follows != 0)
        head.follower = places[launches.follower_of(rank, signal.event)].bits;
    }
  }
}

/// Fills in the tables that only a dynamic run needs.
void schedule(Program& program, const Compiled& compiled, uint32_t rank) {
  const Launches& launches = compiled.launches;
  space_out(program, rank);
  const std::vector<uint32_t>& order = launches.order_of(rank);
  std::vector<PacketPlace> places(order.size());  // [tasks]
  std::vector<uint32_t> positions(order.size());
  for (uint32_t position = 0; position < order.size(); ++position) {
    positions[order[position]] = position;
    places[order[position]] =
        PacketPlace::of(program.positions[position], program.positions[position + 1]);
  }
  program.watches = launches.watches_of(rank);
  program.dependents = launches.dependents_of(rank);
  for (Dependent& task : program.dependents) {
    task.place = places[task.position];
    task.position = positions[task.position];
    program.places.push_back(task.place.bits);
  }
  program.queued = launches.queued(rank);
  program.pins = launches.pins(rank);
  program.event_slots = launches.event_slots();
  program.scheduler_bytes = sizeof(SchedulerShared);
  name_followers(program, launches, rank, places);
}

/// Checks that all ranks have the same number of schedulers and event slots.
void check_shapes(std::span<const Shape> shapes) {
  for (uint32_t rank = 0; rank < shapes.size(); ++rank)
    if (shapes[rank].schedulers != shapes[0].schedulers ||
        shapes[rank].event_slots != shapes[0].event_slots)
      throw InvalidGraph(GraphFault::tables_differ,
                         {fmt::format("rank 0 has {} schedulers with {} event slots",
                                      shapes[0].schedulers, shapes[0].event_slots),
                          fmt::format("rank {} has {} with {}", rank, shapes[rank].schedulers,
                                      shapes[rank].event_slots)},
                         "equal schedulers and event_slots on all ranks");
}

/// Checks that schedulers can run the graphs: they start tasks by the counters of events, which
/// carried events lack, and the kernel needs code for them.
void check_schedulable(std::span<const Graph> graphs) {
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    for (uint32_t event = 0; event < graphs[rank].events().size(); ++event)
      if (graphs[rank].events()[event].carried)
        throw InvalidGraph(
            GraphFault::trigger_count,
            {event_name(graphs, rank, event), "is carried by data, which schedulers do not read"},
            "a static placement (no schedulers) for graphs with carried events");
    if (!graphs[rank].task_set().scheduled)
      throw InvalidGraph(GraphFault::tables_differ,
                         {fmt::format("rank {} has schedulers", rank),
                          "the kernel of its tasks has no code for them (TaskList::kScheduled)"},
                         "a static placement (no schedulers) for graphs of these tasks");
  }
}

/// Plans what each rank's network block does, and counts the signals of its events.
void add_network(Compiled& compiled, std::span<const Graph> graphs, const FarRanks& far) {
  for (uint32_t rank = 0; rank < graphs.size(); ++rank) {
    const NetworkPlan& plan = compiled.network.emplace_back(plan_network(graphs, rank, far));
    std::vector<EventTriggers>& triggers = compiled.triggers[rank];
    const size_t before = triggers.size();
    triggers.resize(before + plan.events.size());
    for (const FarMessage& message : plan.messages) {
      EventTriggers& published = triggers[plan.published[message.rank]];
      published = {.triggers = published.triggers + 1, .others = true};
    }
    for (uint32_t task = 0; task < plan.sent.size(); ++task) {
      if (plan.sent[task] != kNoEvent) triggers[plan.sent[task]] = {.triggers = 1, .others = true};
      if (plan.read[task] != kNoEvent)
        triggers[plan.read[task]] = {.triggers = plan.read_signals[task], .others = true};
    }
  }
}

Placement in_order(const Launches& launches, size_t ranks) {
  Placement placement;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    placement.queues.push_back({launches.order_of(rank)});
  return placement;
}

}  // namespace

Compiled compile(std::span<const Graph> graphs, std::span<const Shape> shapes,
                 std::optional<Placement> placement, const FarRanks& far) {
  check_tables(graphs);
  check_far_accesses(graphs, far);
  check_shapes(shapes);
  Compiled compiled{
      .triggers = count_triggers(graphs), .placement = {}, .launches = {}, .network = {}};
  const bool dynamic = shapes[0].schedulers > 0;
  const GraphOrder events_only(graphs, GraphOrder::Beside::events_only);
  if (placement) {
    compiled.placement = std::move(*placement);
  } else if (dynamic) {
    check_schedulable(graphs);
    prove_acyclic(events_only);
    compiled.launches = plan_launches(graphs, compiled.triggers, events_only, shapes[0].schedulers,
                                      shapes[0].event_slots);
    compiled.placement = in_order(compiled.launches, graphs.size());
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
  prove_regions(graphs, order, visible, far);
  if (far.any()) add_network(compiled, graphs, far);
  return compiled;
}

Program make_program(std::span<const Graph> graphs, uint32_t rank, const Shape& shape,
                     const Compiled& compiled, const FarRanks& far) {
  const Graph& graph = graphs[rank];
  Program program;
  program.positions.push_back(0);
  program.queues.push_back(0);
  for (const std::vector<uint32_t>& queue : compiled.placement.queues[rank]) {
    for (const uint32_t task : queue) {
      const std::vector<std::byte> packet = packet_of(graph, task, compiled, far);
      program.packets.insert(program.packets.end(), packet.begin(), packet.end());
      program.positions.push_back(static_cast<uint32_t>(program.packets.size() / kPacketAlignment));
    }
    program.queues.push_back(static_cast<uint32_t>(program.positions.size() - 1));
  }
  if (shape.schedulers > 0) schedule(program, compiled, rank);
  const std::vector<bool> awaited = awaited_events(graph);
  for (uint32_t event = 0; event < graph.events().size(); ++event)
    program.events.push_back({.triggers = compiled.triggers[rank][event].triggers,
                              .dynamic_max = graph.events()[event].dynamic_max,
                              .awaited = awaited[event] ? 1u : 0u});
  if (!compiled.network.empty())
    for (size_t i = 0; i < compiled.network[rank].events.size(); ++i)
      program.events.push_back({.triggers = compiled.triggers[rank][program.events.size()].triggers,
                                .dynamic_max = 0,
                                .awaited = 1});
  for (const Graph::TaskNode& task : graph.tasks()) {
    const TaskType& type = graph.task_set().types[task.type];
    program.scratch_bytes = std::max(program.scratch_bytes, type.scratch_bytes);
    if (type.streams) program.streams = shape.streams;
    if (type.loads_ahead) program.ahead_bytes = std::max(program.ahead_bytes, task.ahead_bytes);
  }
  return program;
}

void check_packet_places(uint32_t rank, size_t tasks, uint32_t packet_units) {
  if (tasks * packet_units <= PacketPlace::kUnitsEnd) return;
  throw InvalidGraph(
      GraphFault::packet,
      {fmt::format("rank {} has {} tasks", rank, tasks),
       fmt::format("their packets are {} bytes apart, the length of the longest",
                   packet_units * kPacketAlignment),
       fmt::format("a dynamic run can address at most {} MiB of them",
                   size_t{PacketPlace::kUnitsEnd} * kPacketAlignment >> 20)},
      "fewer tasks or shorter packets (waits, signals, arguments), or a static placement");
}

uint32_t Program::tail_bytes(uint32_t compute_warps) const {
  return std::max(aligned_128(scratch_bytes) + aligned_128(ahead_bytes) +
                      compute_warps * streams.depth * streams.unit_bytes,
                  scheduler_bytes);
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

namespace {

constexpr size_t kWorkerBytes = (sizeof(WorkerShared) + 127) / 128 * 128;

[[noreturn]] void throw_too_much_memory(const Program& program, const Shape& shape,
                                        const Graph& graph, const Capacity& capacity) {
  std::vector<std::string> witness;
  const auto add_largest = [&](const char* does, const char* which, auto bytes_of) {
    uint32_t most = 0, whose = 0;
    for (uint32_t task = 0; task < graph.tasks().size(); ++task) {
      const uint32_t bytes = bytes_of(graph.tasks()[task]);
      if (bytes > most) std::tie(most, whose) = std::tuple(bytes, task);
    }
    if (most > 0)
      witness.push_back(
          fmt::format("{} {} {} bytes {}", task_name(graph, whose), does, most, which));
  };
  add_largest("needs", "of scratch", [&](const Graph::TaskNode& task) {
    return graph.task_set().types[task.type].scratch_bytes;
  });
  add_largest("loads", "ahead", [&](const Graph::TaskNode& task) {
    return graph.task_set().types[task.type].loads_ahead ? task.ahead_bytes : 0;
  });
  witness.push_back(fmt::format("rings of {} units of {} bytes for each of {} warps",
                                program.streams.depth, program.streams.unit_bytes,
                                shape.compute_warps));
  witness.push_back(fmt::format("a block has {} bytes, of which the worker itself uses {}",
                                capacity.shared_bytes, kWorkerBytes));
  throw InvalidGraph(
      GraphFault::shared_memory, std::move(witness),
      "less scratch, less data loaded ahead, or smaller rings (ring_units, unit_bytes)");
}

}  // namespace

void check_capacity(const Program& program, const Shape& shape, const Graph& graph,
                    const Capacity& capacity) {
  if (shape.workers == 0 || shape.blocks() > capacity.multiprocessors)
    throw InvalidGraph(
        GraphFault::co_residency,
        {fmt::format("{} workers and {} schedulers of rank {}", shape.workers, shape.schedulers,
                     graph.place().rank),
         fmt::format("but {} blocks can run at once", capacity.multiprocessors)},
        fmt::format("1 to {} blocks, since they wait for one another", capacity.multiprocessors));
  const size_t needed = kWorkerBytes + size_t{program.tail_bytes(shape.compute_warps)};
  // Each size by itself as well: their sum may have overflowed.
  const uint32_t largest = std::max(program.scratch_bytes, program.ahead_bytes);
  if (std::max<size_t>(largest, needed) <= capacity.shared_bytes) return;
  throw_too_much_memory(program, shape, graph, capacity);
}

}  // namespace tokenyard::megakernel
