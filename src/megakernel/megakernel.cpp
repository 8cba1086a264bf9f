#include "tokenyard/megakernel/megakernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/trace_range.hpp"
#include "fabric/agreement.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/graph_codec.hpp"
#include "megakernel/megakernel_parts.hpp"
#include "megakernel/proofs/access_agreement.hpp"
#include "megakernel/shape.hpp"
#include "megakernel/trace/trace_gathering.hpp"

namespace tokenyard::megakernel {

namespace {

/// Collective. Returns the graphs of all ranks, [ranks].
std::vector<Graph> gather_graphs(World& world, const Graph& mine) {
  std::vector<Graph> graphs;
  for (const auto& theirs : world.all_gather(GraphCodec::encode(mine), "megakernel: graphs")) {
    const auto rank = static_cast<uint32_t>(graphs.size());
    graphs.push_back(GraphCodec::decode(theirs, mine.task_set(), rank));
  }
  return graphs;
}

/// Returns the kernel of these tasks to launch.
const KernelEntry& kernel_of(const MegakernelOptions& options, const TaskSet& tasks,
                             const Accelerator& accelerator) {
  if (!options.check_accesses || accelerator.kind() == AcceleratorKind::simulated)
    return tasks.kernel_for(options.schedulers);
  if (accelerator.kind() != AcceleratorKind::host)
    throw Unsupported("check_accesses",
                      "only hosts and the simulator can check each access of a kernel");
  if (tasks.watched == nullptr)
    throw Unsupported("check_accesses", "these tasks have no kernel that reports its accesses");
  return *tasks.watched;
}

}  // namespace

Megakernel::Impl::Impl(World& of_caller, const Graph& graph, const MegakernelOptions& options)
    : pinned(WorldAccess::pinned(of_caller)),
      world(with_filled_slots(*pinned, "a megakernel")),
      accelerator(accelerator_of(world)),
      far(world),
      graph(graph),
      shape(shape_of(options, graph, accelerator, far.any())),
      kernel(kernel_of(options, graph.task_set(), accelerator)),
      watch(options.check_accesses || accelerator.kind() == AcceleratorKind::simulated
                ? std::make_unique<AccessWatch>(this->graph)
                : nullptr),
      cell(accelerator, abort_flag_of(world)) {
  const std::vector<Shape> shapes = gather(world, shape, "megakernel: shapes");
  const std::vector<Graph> graphs = gather_graphs(world, graph);
  const Compiled compiled = compile(graphs, shapes, std::nullopt, far);
  agree_on_accesses(world, graph, shape, far);
  program = make_program(graphs, world.rank(), shape, compiled, far);
  triggers = compiled.triggers[world.rank()];
  signallers = dynamic_signallers(graphs, world.rank());
  if (shape.schedulers == 0) queues = compiled.placement.queues[world.rank()];
  // Every rank checks all ranks, so that all throw alike.
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    const Shape& of_rank = shapes[rank];
    const Program theirs = make_program(graphs, rank, of_rank, compiled, far);
    check_capacity(theirs, of_rank, graphs[rank], accelerator.capacity());
    // Ranks that share a GPU form one grid, whose blocks all have the same size.
    tail_bytes = std::max(tail_bytes, theirs.tail_bytes(of_rank.compute_warps));
  }
  accelerator.prepare(kernel);
  if (far.any()) {
    const NetworkPlan& plan = compiled.network[world.rank()];
    network = std::make_unique<NetworkTables>(world, graph, plan, far);
    for (const std::string& name : plan.events) this->graph.event({.name = name});
  }
  tables =
      std::make_unique<DeviceTables>(world, program, this->graph, shape, options.trace_records);
  traced = traced_graph(graphs, world.rank());
}

Megakernel::Impl::~Impl() {
  if (running) {
    accelerator.write_flag(&tables->record()->stop, 1);
    try {
      await_end();
    } catch (const std::exception&) {
      failure = std::current_exception();  // A destructor cannot report it.
    }
  }
  if (failure && tables) tables->quarantine();
  if (failure && network) network->quarantine();
}

void Megakernel::Impl::launch(uint32_t iterations, bool by_feeding) {
  std::unique_lock lock(state);
  check_usable();
  if (running)
    throw InvalidArgument("run", "no other run: stop() the previous one first", "it still runs");
  RunParams params{};
  tables->describe(params);
  if (network) network->describe(params);
  params.rank = world.rank();
  params.ranks = world.size();
  params.run = static_cast<uint32_t>(++runs);
  params.workers = shape.workers;
  params.compute_warps = shape.compute_warps;
  params.tasks = static_cast<uint32_t>(graph.tasks().size());
  params.first = finished;
  params.iterations = iterations;
  params.fed = by_feeding;
  params.loop_event = graph.loop() ? graph.loop()->id : kNoEvent;
  params.streams = program.streams;
  params.scratch_bytes = program.scratch_bytes;
  params.ahead_bytes = program.ahead_bytes;
  params.dynamic.first_ticket = finished * params.dynamic.queued + (runs - 1) * shape.workers;
  params.wait_context = cell.wait_context(world.timeout());
  RunRecord* const record = tables->record();
  for (uint32_t* word : {&record->done, &record->fed, &record->stop})
    accelerator.write_flag(word, 0);
  fed = 0;
  ended_by_loop.reset();
  running = true;
  fed_run = by_feeding;
  const LaunchShape launch_shape{.blocks = shape.blocks(),
                                 .warps = shape.warps(accelerator),
                                 .extra_shared_bytes = tail_bytes,
                                 .guard = watch.get()};
  if (by_feeding && accelerator.kind() == AcceleratorKind::host) {
    thread_ended = false;
    thread = std::jthread([this, params, launch_shape] {
      try {
        accelerator.launch(kernel, launch_shape, {}, &params);
      } catch (...) {
        thread_failure = std::current_exception();
      }
      thread_ended = true;
    });
    return;
  }
  // On the host, the kernel has ended when launch() returns.
  lock.unlock();
  try {
    begun.emplace(accelerator, accelerator.record({}));
    accelerator.launch(kernel, launch_shape, {}, &params);
    ended.emplace(accelerator, accelerator.record({}));
  } catch (...) {
    const std::lock_guard relock(state);
    running = false;
    failure = std::current_exception();
    throw;
  }
}

bool Megakernel::Impl::run_ended() {
  return thread.joinable() ? thread_ended.load() : !ended || accelerator.done(ended->get());
}

/// Waits for the kernel, which ends by itself because each iteration has a deadline. Only its start
/// may be delayed forever, by other work that occupies multiprocessors.
void Megakernel::Impl::await_end() {
  const auto wait_context = 2 * world.timeout();
  while (!accelerator.wait_until(accelerator.now() + wait_context, [&] { return run_ended(); })) {
    const bool started =
        accelerator.read_flag(&tables->record()->started) == static_cast<uint32_t>(runs);
    if (started && !cell.failed()) continue;
    failure = std::make_exception_ptr(PeerTimeout(WaitFacts{
        .rank = world.rank(),
        .phase = started ? "megakernel: the end of a failed run"
                         : "megakernel: the kernel's start (all its blocks must fit on the device "
                           "beside other work; end that work, or use fewer workers)",
        .expected = runs,
        .seen = accelerator.read_flag(&tables->record()->started),
        .waited_s = std::chrono::duration<double>(wait_context).count()}));
    std::rethrow_exception(failure);
  }
  running = false;
  if (thread.joinable()) {
    thread.join();
    if (thread_failure) {
      failure = thread_failure;
      std::rethrow_exception(failure);
    }
  } else {
    run_ms = accelerator.elapsed_ms(begun->get(), ended->get());
  }
}

/// Waits for the run's end and returns the number of its iterations.
uint32_t Megakernel::Impl::end_run() {
  await_end();
  uint64_t least = UINT64_MAX;
  // The first scheduler counts in a dynamic run, every worker in a static one.
  const uint32_t from = shape.schedulers > 0 ? shape.workers : 0;
  const uint32_t to = shape.schedulers > 0 ? from + 1 : shape.workers;
  for (uint32_t block = from; block < to; ++block)
    least = std::min(least, tables->progress()[block]);
  finished += least;
  if (cell.failed()) throw_failure();
  if (network) drain_network();
  check_counts();
  try {
    abort_flag_of(world).check_ended("megakernel: a run");
  } catch (const Error&) {  // The run ended just before it would have noticed.
    failure = std::current_exception();
    throw;
  }
  return static_cast<uint32_t>(least);
}

/// Waits until what this rank has put has landed: peers may free their memory once all runs have
/// ended.
void Megakernel::Impl::drain_network() {
  try {
    network->drain();
  } catch (const std::exception&) {
    failure = std::current_exception();
    throw;
  }
}

Megakernel::Megakernel(World& world, const Graph& graph, const MegakernelOptions& options)
    : impl_(std::make_unique<Impl>(world, graph, options)) {}

Megakernel::~Megakernel() = default;

uint32_t Megakernel::run(uint32_t iterations) {
  const TraceRange range("Megakernel.run");
  const bool loops = impl_->graph.loop().has_value();
  if (iterations == 0 && !loops)
    throw InvalidArgument("iterations", "at least 1 for a graph without a loop event", "0");
  if (iterations != 1 && impl_->graph.is_once())
    throw InvalidArgument("iterations", "1 for a graph that was declared once()",
                          fmt::format("{}", iterations));
  impl_->launch(iterations, false);
  const std::lock_guard lock(impl_->state);
  return impl_->end_run();
}

void Megakernel::start() {
  const TraceRange range("Megakernel.start");
  if (impl_->graph.is_once())
    throw InvalidArgument("start", "a graph of many iterations", "one declared once()");
  impl_->launch(0, true);
}

void Megakernel::feed(uint32_t iterations) {
  const TraceRange range("Megakernel.feed");
  const std::lock_guard lock(impl_->state);
  impl_->require_started("feed");
  const uint32_t room = Turn::kAllowedMax - impl_->fed;
  if (iterations > room)
    throw InvalidArgument("iterations",
                          fmt::format("at most {} in addition to the {} fed", room, impl_->fed),
                          fmt::format("{}", iterations));
  impl_->fed += iterations;
  impl_->accelerator.write_flag(&impl_->tables->record()->fed, impl_->fed);
}

uint32_t Megakernel::await(uint32_t iterations) {
  const TraceRange range("Megakernel.await");
  Impl& impl = *impl_;
  {
    const std::lock_guard lock(impl.state);
    if (impl.ended_by_loop) return *impl.ended_by_loop;
    impl.require_started("await");
    if (iterations > impl.fed)
      throw InvalidArgument("iterations", fmt::format("at most the {} fed", impl.fed),
                            fmt::format("{}", iterations));
  }
  const auto wait_context = 2 * impl.world.timeout();
  uint32_t done = 0;
  const auto reached = [&] {
    done = impl.accelerator.read_flag(&impl.tables->record()->done);
    return done >= iterations || impl.cell.failed() || impl.run_ended();
  };
  for (uint32_t before = UINT32_MAX;
       !impl.accelerator.wait_until(impl.accelerator.now() + wait_context, reached); before = done)
    if (done == before) break;  // No iteration in all that time: find out why.
  if (done >= iterations) return done;
  const std::lock_guard lock(impl.state);
  impl.ended_by_loop = impl.end_run();  // Throws if the run failed.
  return *impl.ended_by_loop;
}

uint32_t Megakernel::stop() {
  const TraceRange range("Megakernel.stop");
  const std::lock_guard lock(impl_->state);
  if (impl_->ended_by_loop) return *std::exchange(impl_->ended_by_loop, std::nullopt);
  impl_->require_started("stop");
  impl_->accelerator.write_flag(&impl_->tables->record()->stop, 1);
  return impl_->end_run();
}

uint64_t Megakernel::finished_iterations() const {
  return impl_->finished;
}

double Megakernel::last_run_ms() const {
  return impl_->run_ms;
}

Trace Megakernel::trace() const {
  const Impl& impl = *impl_;
  if (impl.running)
    throw InvalidArgument("trace",
                          "a run that has ended: stop() it first, since workers write their traces "
                          "when they leave",
                          "one that still runs");
  Trace trace{.rank = impl.world.rank(),
              .workers = impl.shape.workers,
              .tasks = impl.traced.tasks,
              .events = impl.traced.events,
              .spans = {}};
  const std::vector<TraceRecord> records = impl.tables->read_trace();
  const std::vector<uint32_t> used = impl.tables->read_trace_used();
  const uint32_t capacity = impl.tables->trace_records();
  for (uint32_t worker = 0; worker < used.size(); ++worker) {
    const uint32_t kept = std::min(used[worker], capacity);
    for (uint32_t i = used[worker] - kept; i < used[worker]; ++i) {
      const TraceRecord& record = records[size_t{worker} * capacity + i % capacity];
      trace.spans.push_back({.worker = worker,
                             .task = record.task,
                             .iteration = record.iteration,
                             .taken_ns = record.taken_ns,
                             .begun_ns = record.begun_ns,
                             .ended_ns = record.ended_ns});
    }
  }
  return trace;
}

std::vector<Trace> Megakernel::traces() const {
  return gather_traces(impl_->world, trace());
}

}  // namespace tokenyard::megakernel
