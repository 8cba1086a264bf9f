/// Bindings of task graphs and of the kernel that runs them; see tokenyard.megakernel.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "integers.hpp"
#include "megakernel/tasks/builtin.hpp"
#include "registration.hpp"
#include "task_args.hpp"
#include "tokenyard/megakernel/megakernel.hpp"

using namespace nanobind::literals;

namespace tokenyard::python {

namespace {

using RegionTuple =
    std::tuple<uint32_t, uint64_t, uint64_t, uint32_t>;              // Tensor, begin, end, rank.
using WaitTuple = std::tuple<uint32_t, uint32_t>;                    // Event, lag.
using SignalTuple = std::tuple<uint32_t, uint32_t, uint32_t, bool>;  // Event, rank, count, dynamic.

std::vector<mk::Region> regions_of(const std::vector<RegionTuple>& tuples) {
  std::vector<mk::Region> regions;
  for (const auto& [tensor, begin, end, rank] : tuples)
    regions.push_back({tensor, begin, end, rank});
  return regions;
}

uint32_t add_task(TaskGraph& self, const std::string& type, const nb::dict& args,
                  const std::string& name, const std::vector<RegionTuple>& reads,
                  const std::vector<RegionTuple>& writes, const std::vector<RegionTuple>& adds,
                  const std::vector<RegionTuple>& streams, const std::vector<WaitTuple>& waits,
                  const std::vector<SignalTuple>& signals, const std::vector<uint32_t>& expects,
                  std::optional<uint32_t> worker, uint64_t cost_ns) {
  const mk::TaskSet& set = self.graph.task_set();
  mk::TaskOptions options{.name = name,
                          .reads = regions_of(reads),
                          .writes = regions_of(writes),
                          .adds = regions_of(adds),
                          .streams = regions_of(streams),
                          .worker = worker,
                          .cost_ns = cost_ns};
  for (const auto& [event, lag] : waits) options.waits.push_back({{event}, lag});
  for (const auto& [event, rank, count, dynamic] : signals)
    options.signals.push_back({.event = {event}, .rank = rank, .count = count, .dynamic = dynamic});
  for (const uint32_t event : expects) options.expects.push_back({event});
  const TaskArgs task_args(self, set.types[set.index_of(type)], name, args);
  return self.graph.add(type, task_args.bytes(), std::move(options), task_args.pieces()).id;
}

/// Returns the name of each task type and of its arguments.
std::vector<std::pair<std::string, std::vector<std::string>>> types_of(const TaskGraph& self) {
  std::vector<std::pair<std::string, std::vector<std::string>>> types;
  for (const mk::TaskType& type : self.graph.task_set().types) {
    std::vector<std::string> names;
    for (const mk::ArgField& field : type.fields) names.emplace_back(field.name);
    types.emplace_back(type.name, std::move(names));
  }
  return types;
}

/// A Megakernel and its memory, in this order: members are destroyed in reverse, and the kernel
/// must be destroyed first.
struct Running : UponWorld {
  Running(UponWorld upon, const TaskGraph& graph, const mk::MegakernelOptions& options)
      : UponWorld(std::move(upon)),
        memories(graph.memories),
        kernel(*world, graph.graph, options) {}
  std::set<std::shared_ptr<HeldMemory>> memories;
  mk::Megakernel kernel;
};

class Kernel {
 public:
  Kernel(const WorldHandle& world, const TaskGraph& graph, const mk::MegakernelOptions& options)
      : running_(make_upon<Running>(world, graph, options)) {}
  Running& get() const { return *running_; }

 private:
  std::shared_ptr<Running> running_;
};

std::unique_ptr<Kernel> make_kernel(const WorldHandle& world, const TaskGraph& graph,
                                    uint32_t workers, uint32_t compute_warps, uint32_t unit_bytes,
                                    uint32_t ring_units, uint32_t schedulers, uint32_t task_slots,
                                    uint32_t trace_records, bool check_accesses) {
  return std::make_unique<Kernel>(world, graph,
                                  mk::MegakernelOptions{.workers = workers,
                                                        .compute_warps = compute_warps,
                                                        .unit_bytes = unit_bytes,
                                                        .ring_units = ring_units,
                                                        .schedulers = schedulers,
                                                        .task_slots = task_slots,
                                                        .trace_records = trace_records,
                                                        .check_accesses = check_accesses});
}

/// Calls a member of Megakernel without the interpreter lock: any may wait for other ranks, whose
/// threads may need it. Ranks that share a GPU even start together.
template <auto function, class... Arguments>
auto without_lock(const Kernel& kernel, Arguments... arguments) {
  Running& running = kernel.get();
  const Callers::Turn turn = running.turn();
  nb::gil_scoped_release released;
  return (running.kernel.*function)(arguments...);
}

/// Feeds while another thread may be in wait(): a server feeds on one thread and waits on another.
void feed(const Kernel& kernel, uint32_t iterations) {
  Running& running = kernel.get();
  running.callers->check_process();
  nb::gil_scoped_release released;
  running.kernel.feed(iterations);
}

std::string perfetto_of(const std::vector<mk::Trace>& traces) {
  nb::gil_scoped_release unlocked;
  return mk::perfetto(traces);
}

std::string summary_of(const mk::Trace& trace) {
  return trace.summary().text(trace.spans, trace.tasks);
}

}  // namespace

void register_megakernel(nb::module_& m) {
  nb::class_<Piece>(m, "Piece", "A range of memory that tasks access.")
      .def_ro("bytes", &Piece::bytes)
      .def_prop_ro("dtype", [](const Piece& self) { return self.allocation->dtype; })
      .def(
          "at",
          [](const Piece& self, const nb::object& offset) {
            const std::optional<uint64_t> bytes = integer_of(offset, self.bytes);
            if (!bytes)
              throw InvalidArgument("offset", fmt::format("an integer from 0 to {}", self.bytes),
                                    nb::repr(offset).c_str());
            return self.at(*bytes);
          },
          "offset"_a, nb::sig("def at(self, offset: int) -> Piece"));
  nb::class_<Memory>(m, "TensorMemory", "Memory of one rank for a graph's tensors.")
      .def(nb::init<const WorldHandle&>(), "world"_a)
      .def("local", &Memory::local, "bytes"_a, nb::kw_only(), "dtype"_a = "")
      .def("visible", &Memory::visible, "bytes"_a, nb::kw_only(), "dtype"_a = "")
      .def("shared", &Memory::shared, "bytes"_a)
      .def("write", &Memory::write, "to"_a, "data"_a)
      .def("read", &Memory::read, "source"_a, "bytes"_a);
  nb::class_<TaskGraph>(m, "TaskGraph", "See tokenyard.megakernel.Graph.")
      .def(
          "__init__",
          [](TaskGraph* self, uint32_t rank, uint32_t ranks) {
            new (self)
                TaskGraph{.graph = mk::Graph(mk::builtin_tasks(), {.rank = rank, .ranks = ranks})};
          },
          nb::kw_only(), "rank"_a, "ranks"_a)
      .def(
          "tensor",
          [](TaskGraph& self, const std::string& name, const Piece& piece, uint64_t bytes,
             bool given) {
            const uint32_t rank = self.graph.place().rank;
            if (piece.allocation->rank != rank)
              throw InvalidArgument(fmt::format("piece of tensor '{}'", name),
                                    fmt::format("one of this rank, {}", rank),
                                    fmt::format("one of rank {}", piece.allocation->rank));
            self.keep(piece);
            return self.graph
                .tensor({.name = name,
                         .bytes = bytes,
                         .given = given ? mk::Given::always : mk::Given::no,
                         .places = piece.places()})
                .id;
          },
          "name"_a, "piece"_a, nb::kw_only(), "bytes"_a, "given"_a)
      .def(
          "event",
          [](TaskGraph& self, const std::string& name, std::optional<uint32_t> count,
             uint32_t dynamic_max) {
            return self.graph.event({.name = name, .count = count, .dynamic_max = dynamic_max}).id;
          },
          "name"_a, nb::kw_only(), "count"_a.none(), "dynamic_max"_a)
      .def("add", &add_task, "type"_a, "args"_a, nb::kw_only(), "name"_a, "reads"_a, "writes"_a,
           "adds"_a, "streams"_a, "waits"_a, "signals"_a, "expects"_a, "worker"_a.none(),
           "cost_ns"_a)
      .def(
          "loop_on", [](TaskGraph& self, uint32_t event) { self.graph.loop_on({event}); },
          "event"_a)
      .def("once", [](TaskGraph& self) { self.graph.once(); })
      .def_prop_ro("task_types", &types_of)
      .def(
          "set_cost",
          [](TaskGraph& self, uint32_t task, uint64_t cost_ns) {
            self.graph.set_cost({task}, cost_ns);
          },
          "task"_a, "cost_ns"_a);
  nb::class_<mk::Trace>(m, "TaskTrace", "Times at which each task of a run waited, ran and ended.")
      .def("perfetto", &mk::Trace::perfetto)
      .def("summary", &summary_of)
      .def("measured_costs", &mk::Trace::measured_costs)
      .def_ro("rank", &mk::Trace::rank)
      .def_static("perfetto_of", &perfetto_of, "traces"_a);
  nb::class_<Kernel>(m, "Megakernel", "See tokenyard.megakernel.Megakernel.")
      .def_static("make", &make_kernel, "world"_a, "graph"_a, nb::kw_only(), "workers"_a,
                  "compute_warps"_a, "unit_bytes"_a, "ring_units"_a, "schedulers"_a, "task_slots"_a,
                  "trace_records"_a, "check_accesses"_a)
      .def("run", &without_lock<&mk::Megakernel::run, uint32_t>, "iterations"_a)
      .def("start", &without_lock<&mk::Megakernel::start>)
      .def("feed", &feed, "iterations"_a)
      .def("wait", &without_lock<&mk::Megakernel::await, uint32_t>, "iterations"_a)
      .def("stop", &without_lock<&mk::Megakernel::stop>)
      .def_prop_ro("finished_iterations",
                   [](const Kernel& self) { return self.get().kernel.finished_iterations(); })
      .def("trace", &without_lock<&mk::Megakernel::trace>)
      .def("traces", &without_lock<&mk::Megakernel::traces>);
}

}  // namespace tokenyard::python
