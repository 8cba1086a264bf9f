#include "simulation/simulated_accelerator.hpp"

#include <fmt/format.h>

#include <cstring>

#include "tokenyard/error.hpp"

namespace tokenyard::simulation {
namespace {

/// More blocks than our kernels need, but few enough that no kernel relies on a large GPU.
constexpr uint32_t kBlocksMax = 64;
constexpr uint32_t kSharedBytes = 227 << 10;

}  // namespace

struct SimulatedAccelerator::Queue {
  struct Entry {
    Operation operation;
    ReleaseRef ticket;  ///< covers what the host did before it enqueued this
  };
  std::deque<Entry> waiting;
  bool busy = false;
  ReleaseRef ended;  ///< covers all operations that have ended
  bool idle() const { return waiting.empty() && !busy; }
};

SimulatedAccelerator::SimulatedAccelerator(Simulation& simulation, uint32_t rank,
                                           ModelMemory::Host host)
    : simulation_(simulation), rank_(rank), host_(host) {}

SimulatedAccelerator::~SimulatedAccelerator() = default;

Capacity SimulatedAccelerator::capacity() const {
  return {.multiprocessors = kBlocksMax, .shared_bytes = kSharedBytes};
}

// ---- streams ------------------------------------------------------------------------------------

SimulatedAccelerator::Queue& SimulatedAccelerator::queue(Stream stream) {
  auto& queue = queues_[stream.native];
  if (queue != nullptr) return *queue;
  queue = std::make_shared<Queue>();
  simulation_.add_program(rank_, fmt::format("stream {}", stream.native),
                          [this, queue](ModelMemory::Host host) {
                            simt::Executor& executor = simulation_.executor();
                            while (true) {
                              executor.host_wait([&] { return !queue->waiting.empty(); });
                              const Queue::Entry entry = std::move(queue->waiting.front());
                              queue->waiting.pop_front();
                              queue->busy = true;
                              simulation_.memory().acquire(host, entry.ticket);
                              entry.operation(host);
                              queue->ended = simulation_.memory().release(host);
                              queue->busy = false;
                              simulation_.memory().happened();
                            }
                          });
  return *queue;
}

void SimulatedAccelerator::enqueue(Stream stream, Operation operation) {
  queue(stream).waiting.push_back({std::move(operation), simulation_.memory().release(host_)});
  simulation_.memory().happened();
}

Stream SimulatedAccelerator::make_stream() {
  return Stream(++streams_made_);
}

void SimulatedAccelerator::free_stream(Stream) {
  // Enqueued work still runs; an idle stream costs nothing.
}

Event SimulatedAccelerator::record(Stream stream) {
  auto state = std::make_shared<EventState>();
  const Event event{++events_made_};
  events_[event.native] = state;
  enqueue(stream, [this, state](ModelMemory::Host host) {
    state->ticket = simulation_.memory().release(host);
    state->at_ns = simulation_.now_ns();
    state->done = true;
  });
  return event;
}

const std::shared_ptr<SimulatedAccelerator::EventState>& SimulatedAccelerator::event_of(
    Event event) const {
  const auto found = events_.find(event.native);
  if (found == events_.end()) throw InternalError("the event was never recorded, or is freed");
  return found->second;
}

void SimulatedAccelerator::wait(Stream stream, Event event) {
  enqueue(stream, [this, state = event_of(event)](ModelMemory::Host host) {
    simulation_.executor().host_wait([&] { return state->done; });
    simulation_.memory().acquire(host, state->ticket);
  });
}

bool SimulatedAccelerator::done(Event event) {
  const auto& state = event_of(event);
  if (state->done) simulation_.memory().acquire(host_, state->ticket);
  return state->done;
}

void SimulatedAccelerator::free_event(Event event) {
  events_.erase(event.native);
}

float SimulatedAccelerator::elapsed_ms(Event begin, Event end) {
  return static_cast<float>(event_of(end)->at_ns - event_of(begin)->at_ns) * 1e-6f;
}

void SimulatedAccelerator::drain() {
  simulation_.executor().host_wait([&] {
    for (const auto& [stream, queue] : queues_)
      if (!queue->idle()) return false;
    return true;
  });
  for (const auto& [stream, queue] : queues_) simulation_.memory().acquire(host_, queue->ended);
}

// ---- work ---------------------------------------------------------------------------------------

void SimulatedAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape,
                                  Stream stream, const void* params) {
  const uint32_t threads = shape.warps * 32;
  if (shape.blocks == 0 || shape.blocks > kBlocksMax)
    throw InvalidArgument("blocks", fmt::format("1 to {}", kBlocksMax),
                          fmt::format("{}", shape.blocks));
  if (threads == 0 || threads > kernel.threads_max)
    throw InvalidArgument("warps",
                          fmt::format("1 to {} for {}", kernel.threads_max / 32, kernel.name),
                          fmt::format("{}", shape.warps));
  if (kernel.shared_bytes + shape.extra_shared_bytes > kSharedBytes)
    throw InvalidArgument(
        "extra_shared_bytes",
        fmt::format("at most {} with the {} of {}", kSharedBytes, kernel.shared_bytes, kernel.name),
        fmt::format("{}", shape.extra_shared_bytes));
  const auto* const bytes = static_cast<const std::byte*>(params);
  std::vector<std::byte> kept(bytes, bytes + kernel.params_bytes);
  enqueue(stream, [this, &kernel, shape, threads, kept = std::move(kept)](ModelMemory::Host host) {
    simulation_.memory().launch_from(host);
    const auto grid = simulation_.executor().launch(
        rank_, kernel, {shape.blocks, threads, shape.extra_shared_bytes, shape.guard}, kept.data());
    simulation_.executor().host_wait([&] { return grid->running == 0; });
  });
}

void SimulatedAccelerator::copy(void* to, const void* from, size_t bytes, Stream stream) {
  enqueue(stream, [this, to, from, bytes](ModelMemory::Host host) {
    simulation_.memory().host_access(host, from, bytes, false, nullptr);
    simulation_.memory().host_access(host, to, bytes, true, nullptr);
    std::memmove(to, from, bytes);
  });
}

void SimulatedAccelerator::fill(void* to, int byte, size_t bytes, Stream stream) {
  enqueue(stream, [this, to, byte, bytes](ModelMemory::Host host) {
    simulation_.memory().host_access(host, to, bytes, true, nullptr);
    std::memset(to, byte, bytes);
  });
}

// ---- memory, flags and time ---------------------------------------------------------------------

void* SimulatedAccelerator::allocate(size_t bytes) {
  return simulation_.allocate(fmt::format("memory #{}", ++allocated_), bytes, rank_);
}
void SimulatedAccelerator::free(void* memory) {
  drain();  // As cudaFree does: running kernels may still use the memory.
  simulation_.free(memory);
}
void* SimulatedAccelerator::allocate_shared(size_t bytes) {
  return simulation_.allocate(fmt::format("host memory #{}", ++allocated_), bytes, rank_);
}
void SimulatedAccelerator::free_shared(void* memory) {
  free(memory);
}

bool SimulatedAccelerator::wait_until(TimePoint until, const std::function<bool()>& condition) {
  bool held = false;
  simulation_.executor().host_wait([&] {
    held = condition();
    return held || now() >= until;
  });
  return held;
}

TimePoint SimulatedAccelerator::now() const {
  return TimePoint(std::chrono::nanoseconds(simulation_.now_ns()));
}

uint32_t SimulatedAccelerator::read_flag(const uint32_t* flag) {
  return simulation_.memory().read_flag(host_, flag);
}
void SimulatedAccelerator::write_flag(uint32_t* flag, uint32_t value) {
  simulation_.memory().write_flag(host_, flag, value);
}

}  // namespace tokenyard::simulation
