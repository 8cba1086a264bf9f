#include "tokenyard/megakernel/graph.hpp"

#include <fmt/format.h>

#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Of one task to one event: what a packet has room for.
constexpr uint32_t kSignalsMax = UINT16_MAX;
constexpr uint32_t kDynamicMax = UINT32_MAX - 1;  // One more must be countable.

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
  const Tensor made{static_cast<uint32_t>(tensors_.size()), options.bytes};
  tensors_.push_back(std::move(options));
  return made;
}

Event Graph::event(EventOptions options) {
  if (options.dynamic_max > kDynamicMax)
    throw InvalidArgument(fmt::format("dynamic_max of event '{}'", options.name),
                          fmt::format("at most {}", kDynamicMax),
                          fmt::format("{}", options.dynamic_max));
  const Event made{static_cast<uint32_t>(events_.size())};
  events_.push_back(std::move(options));
  return made;
}

Task Graph::add(std::string_view type, std::span<const std::byte> args, TaskOptions options) {
  const uint32_t index = tasks_.index_of(type);
  if (options.name.empty()) options.name = fmt::format("{} {}", type, nodes_.size());
  if (args.size() != tasks_.types[index].args_bytes)
    throw InvalidArgument(fmt::format("arguments of task '{}'", options.name),
                          fmt::format("{} bytes", tasks_.types[index].args_bytes),
                          fmt::format("{}", args.size()));
  const auto check_all = [&](std::vector<Region>& regions, const char* access) {
    for (Region& region : regions) {
      check_region(region, access, options, tensors_, place_.ranks);
      if (region.rank == kThisRank) region.rank = place_.rank;
    }
  };
  check_all(options.reads, "reads");
  check_all(options.writes, "writes");
  check_all(options.adds, "adds");
  check_all(options.streams, "streams");
  for (const Wait& wait : options.waits) {
    check_event(wait.event.id, options, events_.size());
    if (wait.lag > 1)
      throw InvalidArgument(fmt::format("lag of a wait of task '{}'", options.name), "0 or 1",
                            fmt::format("{}", wait.lag));
  }
  for (Signal& signal : options.signals) {
    check_event(signal.event.id, options, events_.size());
    if (signal.rank == kThisRank) signal.rank = place_.rank;
    if (signal.rank >= place_.ranks || signal.count == 0 || signal.count > kSignalsMax)
      throw InvalidArgument(
          fmt::format("a signal of task '{}'", options.name),
          fmt::format("a rank below {} and a count of 1 to {}", place_.ranks, kSignalsMax),
          fmt::format("rank {}, count {}", signal.rank, signal.count));
  }
  for (const Event& event : options.expects) check_event(event.id, options, events_.size());

  TaskNode node{std::move(options), index, {args.begin(), args.end()}};
  nodes_.push_back(std::move(node));
  return {static_cast<uint32_t>(nodes_.size() - 1)};
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
