#include "tokenyard/megakernel/graph.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Signals of one task to one event, limited by the packet's field.
constexpr uint32_t kSignalsMax = UINT16_MAX;
constexpr uint32_t kDynamicMax = UINT32_MAX - 1;  // dynamic_triggers() adds one.

void check_region(const Region& region, const char* access, const TaskOptions& task,
                  const std::vector<TensorOptions>& tensors, uint32_t ranks) {
  const std::string where = fmt::format("{} of task '{}'", access, task.name);
  if (region.tensor >= tensors.size())
    throw InvalidArgument(where, fmt::format("one of {} tensors", tensors.size()),
                          fmt::format("tensor {}", region.tensor));
  const TensorOptions& tensor = tensors[region.tensor];
  if (region.begin > region.end || region.end > tensor.bytes)
    throw InvalidArgument(where,
                          fmt::format("bytes within the {} of '{}'", tensor.bytes, tensor.name),
                          fmt::format("[{}, {})", region.begin, region.end));
  if (region.rank != kThisRank && region.rank >= ranks)
    throw InvalidArgument(where, fmt::format("ranks below {}", ranks),
                          fmt::format("rank {}", region.rank));
}

void check_event(uint32_t event, const TaskOptions& task, size_t events) {
  if (event >= events)
    throw InvalidArgument(fmt::format("events of task '{}'", task.name),
                          fmt::format("one of {} events", events), fmt::format("event {}", event));
}

void check_dynamic_max(const EventOptions& event) {
  if (event.dynamic_max > kDynamicMax)
    throw InvalidArgument(fmt::format("dynamic_max of event '{}'", event.name),
                          fmt::format("at most {}", kDynamicMax),
                          fmt::format("{}", event.dynamic_max));
}

void check_arguments(const TaskOptions& task, const TaskType& type, size_t bytes) {
  if (bytes != type.args_bytes)
    throw InvalidArgument(fmt::format("arguments of task '{}'", task.name),
                          fmt::format("{} bytes", type.args_bytes), fmt::format("{}", bytes));
}

/// Throws unless the task declares the dynamic events that its arguments name, and no others.
void check_dynamic(const Touches& touches, const TaskOptions& task, uint32_t ranks,
                   const std::vector<EventOptions>& events) {
  for (const Touches::Named& named : touches.expected()) {
    check_event(named.event.id, task, events.size());
    if (std::ranges::find(task.expects, named.event.id, &Event::id) == task.expects.end())
      throw InvalidArgument(touches.name_of(named.argument), "an event that the task expects",
                            fmt::format("event '{}'", events[named.event.id].name));
  }
  for (const Touches::Named& named : touches.signalled()) {
    check_event(named.event.id, task, events.size());
    if (named.rank >= ranks)
      throw InvalidArgument(touches.name_of(named.rank_argument), fmt::format("below {}", ranks),
                            fmt::format("{}", named.rank));
    const bool declared = std::ranges::any_of(task.signals, [&](const Signal& signal) {
      return signal.dynamic && signal.event.id == named.event.id && signal.rank == named.rank;
    });
    if (!declared)
      throw InvalidArgument(
          touches.name_of(named.argument),
          "an event with a dynamic signal of the task to that rank",
          fmt::format("event '{}' of rank {}", events[named.event.id].name, named.rank));
  }
  for (const Event& event : task.expects)
    if (std::ranges::none_of(touches.expected(),
                             [&](const auto& named) { return named.event.id == event.id; }))
      throw InvalidArgument(touches.name_of("expects"), "events that its arguments name",
                            fmt::format("event '{}'", events[event.id].name));
  for (const Signal& signal : task.signals)
    if (signal.dynamic && std::ranges::none_of(touches.signalled(), [&](const auto& named) {
          return named.event.id == signal.event.id && named.rank == signal.rank;
        }))
      throw InvalidArgument(
          touches.name_of("signals"),
          "dynamic signals only to the event and rank that its arguments name",
          fmt::format("event '{}' of rank {}", events[signal.event.id].name, signal.rank));
}

}  // namespace

uint32_t TaskSet::index_of(std::string_view name) const {
  std::string known;
  for (uint32_t i = 0; i < types.size(); ++i) {
    if (types[i].name == name) return i;
    known += fmt::format("{}{}", i == 0 ? "" : ", ", types[i].name);
  }
  throw InvalidArgument("task type", "one of " + known, std::string(name));
}

Graph::Graph(const TaskSet& tasks, Place place) : tasks_(tasks), place_(place) {
  if (place.rank >= place.ranks)
    throw InvalidArgument("rank of a graph", fmt::format("below {}", place.ranks),
                          fmt::format("{}", place.rank));
}

Tensor Graph::tensor(TensorOptions options) {
  const size_t places = options.places.size();
  if (places > 1 && places != place_.ranks)
    throw InvalidArgument(fmt::format("places of tensor '{}'", options.name),
                          fmt::format("none, one, or {}, one per rank", place_.ranks),
                          fmt::format("{}", places));
  const Tensor made{static_cast<uint32_t>(tensors_.size()), options.bytes};
  if (options.bytes > 0) {
    // Check all places first, so that a rejected tensor changes nothing.
    for (const ConstTensorView& place : options.places) {
      if (place.bytes() < options.bytes || !place.contiguous())
        throw InvalidArgument(fmt::format("places of tensor '{}'", options.name),
                              fmt::format("{} contiguous bytes", options.bytes), place.text());
      check_no_overlap(options, reinterpret_cast<uint64_t>(place.data));
    }
    for (size_t i = 0; i < places; ++i) {
      const auto begin = reinterpret_cast<uint64_t>(options.places[i].data);
      const uint32_t rank = places == 1 ? place_.rank : static_cast<uint32_t>(i);
      placed_[begin] = {.end = begin + options.bytes, .tensor = made.id, .rank = rank};
    }
  }
  tensors_.push_back(std::move(options));
  return made;
}

void Graph::check_no_overlap(const TensorOptions& tensor, uint64_t begin) const {
  const uint64_t end = begin + tensor.bytes;
  auto next = placed_.lower_bound(begin);
  if (next != placed_.begin() && std::prev(next)->second.end > begin) --next;
  if (next == placed_.end() || next->first >= end) return;
  const auto& [other_begin, other] = *next;
  throw InvalidArgument(
      fmt::format("piece of tensor '{}'", tensor.name),
      "memory of no other tensor (declare it once and use parts of it)",
      fmt::format("bytes [{}, {}) of tensor '{}'", std::max(begin, other_begin) - other_begin,
                  std::min(end, other.end) - other_begin, tensors_[other.tensor].name));
}

void Graph::reach(const ConstTensorView& memory, uint64_t guard) {
  const auto begin = reinterpret_cast<uint64_t>(memory.data);
  reached_[begin] = {.end = begin + memory.bytes(), .guard = guard};
}

Event Graph::event(EventOptions options) {
  check_dynamic_max(options);
  const Event made{static_cast<uint32_t>(events_.size())};
  events_.push_back(std::move(options));
  return made;
}

void Graph::check(const TaskOptions& task) const {
  const auto check_all = [&](const std::vector<Region>& regions, const char* access) {
    for (const Region& region : regions) check_region(region, access, task, tensors_, place_.ranks);
  };
  check_all(task.reads, "reads");
  check_all(task.writes, "writes");
  check_all(task.adds, "adds");
  check_all(task.streams, "streams");
  for (const Wait& wait : task.waits) {
    check_event(wait.event.id, task, events_.size());
    if (wait.lag > 1)
      throw InvalidArgument(fmt::format("lag of a wait of task '{}'", task.name), "0 or 1",
                            fmt::format("{}", wait.lag));
  }
  for (const Signal& signal : task.signals) {
    check_event(signal.event.id, task, events_.size());
    if (signal.rank >= place_.ranks || signal.count == 0 || signal.count > kSignalsMax)
      throw InvalidArgument(
          fmt::format("a signal of task '{}'", task.name),
          fmt::format("a rank below {} and a count of 1 to {}", place_.ranks, kSignalsMax),
          fmt::format("rank {}, count {}", signal.rank, signal.count));
  }
  for (const Event& event : task.expects) check_event(event.id, task, events_.size());
}

void Graph::check_all_tasks() const {
  if (place_.rank >= place_.ranks)
    throw InvalidArgument("rank of a graph", fmt::format("below {}", place_.ranks),
                          fmt::format("{}", place_.rank));
  for (const EventOptions& event : events_) check_dynamic_max(event);
  if (loop_) check_event(loop_->id, TaskOptions{.name = "loop"}, events_.size());
  for (const TaskNode& node : nodes_) {
    if (node.type >= tasks_.types.size())
      throw InvalidArgument(fmt::format("type of task '{}'", node.name),
                            fmt::format("below {}", tasks_.types.size()),
                            fmt::format("{}", node.type));
    check_arguments(node, tasks_.types[node.type], node.args.size());
    check(node);
  }
}

Task Graph::add(std::string_view type, std::span<const std::byte> args, TaskOptions options,
                const std::optional<std::vector<ArgPiece>>& pieces) {
  const uint32_t index = tasks_.index_of(type);
  if (options.name.empty()) options.name = fmt::format("{} {}", type, nodes_.size());
  check_arguments(options, tasks_.types[index], args.size());
  for (auto* regions : {&options.reads, &options.writes, &options.adds, &options.streams})
    for (Region& region : *regions)
      if (region.rank == kThisRank) region.rank = place_.rank;
  for (Signal& signal : options.signals)
    if (signal.rank == kThisRank) signal.rank = place_.rank;
  check(options);

  TaskNode node{std::move(options), index, {args.begin(), args.end()}};
  if (const TaskType& known = tasks_.types[index]; known.touches != nullptr) {
    Touches touches(known.name, node.name);
    known.touches(touches, node.args.data());
    pieces ? touches.check(*pieces) : touches.check_addresses();
    check_dynamic(touches, node, place_.ranks, events_);
  }
  nodes_.push_back(std::move(node));
  return {static_cast<uint32_t>(nodes_.size() - 1)};
}

Touches Graph::touches_of(uint32_t task) const {
  const TaskNode& node = nodes_[task];
  const TaskType& type = tasks_.types[node.type];
  Touches touches(type.name, node.name);
  if (type.touches != nullptr) type.touches(touches, node.args.data());
  return touches;
}

void Graph::loop_on(Event event) {
  check_event(event.id, TaskOptions{.name = "loop"}, events_.size());
  loop_ = event;
}

void Graph::set_cost(Task task, uint64_t cost_ns) {
  if (task.id >= nodes_.size())
    throw InvalidArgument("task of a cost", fmt::format("one of {} tasks", nodes_.size()),
                          fmt::format("task {}", task.id));
  nodes_[task.id].cost_ns = cost_ns;
}

}  // namespace tokenyard::megakernel
