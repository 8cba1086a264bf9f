#include "megakernel/device_tables.hpp"
#include "fabric/world_access.hpp"

#include <algorithm>
#include <bit>

#include "device/await_stream.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::megakernel {

namespace {

/// Default capacity of the queues for pinned tasks.
constexpr uint32_t kPinnedSlots = 4;
/// Distance in words of the two ticket counters: one cache line each.
constexpr uint32_t kTicketsApart = 16;

}  // namespace

void await_stream(World& world, Stream stream, const std::string& what) {
  tokenyard::await_stream(accelerator_of(world), world.rank(), stream, 2 * world.timeout(),
                          "megakernel: " + what);
}

template <class T>
std::unique_ptr<DeviceMemory> DeviceTables::upload(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  auto memory =
      std::make_unique<DeviceMemory>(accelerator_of(world_), bytes, DeviceMemory::Kind::device);
  accelerator_of(world_).copy(memory->as<void>(), values.data(), bytes, {});
  await_stream(world_, {}, "a table");
  return memory;
}

DeviceTables::DeviceTables(World& world, const Program& program, const Graph& graph,
                           const Shape& shape, uint32_t trace_records)
    : world_(world),
      layout_{.ranks = world.size(), .events = static_cast<uint32_t>(graph.events().size())},
      shape_(shape),
      trace_records_(trace_records),
      packets_(upload(program.packets)),
      positions_(upload(program.positions)),
      queues_(upload(program.queues)),
      events_(upload(program.events)),
      workspace_(accelerator_of(world), sizeof(Workspace), DeviceMemory::Kind::device),
      record_(accelerator_of(world), sizeof(RunRecord), DeviceMemory::Kind::shared),
      stalls_(accelerator_of(world), shape.blocks() * sizeof(StallRecord),
              DeviceMemory::Kind::shared),
      progress_(accelerator_of(world), shape.blocks() * sizeof(uint64_t),
                DeviceMemory::Kind::shared) {
  if (shape.schedulers > 0) {
    // A worker holds one ticket more than it has tasks.
    const uint64_t wanted = shape.task_slots > 0 ? uint64_t{shape.task_slots} * shape.workers
                                                 : std::max(program.queued, shape.workers);
    dynamic_ = {.schedulers = shape.schedulers,
                .counted = program.counted,
                .open_max = program.event_slots,
                .slot_count = static_cast<uint32_t>(std::bit_ceil(wanted)),
                .queued = program.queued,
                .packet_units = program.packet_units,
                .pinned = program.pins ? 1u : 0u,
                .task_slots =
                    QueueLayout::of(shape.task_slots > 0 ? shape.task_slots : kPinnedSlots).slots};
    watches_ = upload(program.watches);
    dependents_ = upload(program.dependents);
    places_ = upload(program.places);
    arrived_ = upload(std::vector<uint64_t>(graph.tasks().size()));
    open_ = upload(std::vector<OpenWatch>(size_t{shape.schedulers} * program.event_slots));
    slots_ = upload(std::vector<Stamped>(dynamic_.slot_count));
    tickets_ = upload(std::vector<uint64_t>(2 * kTicketsApart));
    const size_t pairs = size_t{shape.workers} * shape.schedulers;
    task_queues_ = upload(std::vector<std::byte>(
        program.pins ? pairs * QueueLayout{dynamic_.task_slots}.bytes() : 0));
    heads_ = upload(std::vector<uint64_t>(pairs));
    sent_ = upload(std::vector<uint64_t>(pairs));
    dynamic_.watches = watches_->as<const Watch>();
    dynamic_.dependents = dependents_->as<const Dependent>();
    dynamic_.places = places_->as<const uint32_t>();
    dynamic_.arrived = arrived_->as<uint64_t>();
    dynamic_.open = open_->as<OpenWatch>();
    dynamic_.slots = slots_->as<Stamped>();
    dynamic_.published = tickets_->as<uint64_t>();
    dynamic_.drawn = tickets_->as<uint64_t>() + kTicketsApart;
    dynamic_.task_queues = task_queues_->as<std::byte>();
    dynamic_.heads = heads_->as<uint64_t>();
    dynamic_.sent = sent_->as<uint64_t>();
  }
  if (trace_records_ > 0) {
    trace_ = upload(std::vector<TraceRecord>(size_t{shape_.workers} * trace_records_));
    trace_used_ = upload(std::vector<uint32_t>(shape_.workers));
  }
  open_windows();
}

DeviceTables::~DeviceTables() = default;

void DeviceTables::open_windows() {
  window_ = allocate_on_all(world_, layout_.bytes(), "megakernel: window");
  accelerator_of(world_).fill(window_.data(), 0, layout_.bytes(), {});
  await_stream(world_, {}, "zeroed events");
  exchange_window_addresses(
      world_, window_, "megakernel: windows of events",
      [&](const std::vector<std::byte*>& windows) { windows_ = upload(windows); });
}

void DeviceTables::describe(RunParams& params) const {
  params.packets = packets_->as<const std::byte>();
  params.positions = positions_->as<const uint32_t>();
  params.queues = queues_->as<const uint32_t>();
  params.events = events_->as<const EventRecord>();
  params.windows = {.bases = {.table = windows_->as<std::byte*>(), .self = world_.rank()},
                    .own = window_.data(),
                    .own_counters = window_.data() + layout_.counter_at(0),
                    .layout = layout_};
  params.dynamic = dynamic_;
  params.workspace = workspace_.as<Workspace>();
  params.record = record_.as<RunRecord>();
  params.stalls = stalls_.as<StallRecord>();
  params.progress = progress_.as<uint64_t>();
  params.trace = trace_ ? trace_->as<TraceRecord>() : nullptr;
  params.trace_used = trace_used_ ? trace_used_->as<uint32_t>() : nullptr;
  params.trace_records = trace_records_;
}

uint64_t DeviceTables::read_word(size_t at) const {
  uint64_t word = 0;
  accelerator_of(world_).copy(&word, window_.data() + at, sizeof word, {});
  await_stream(world_, {}, "an event's words");
  return word;
}

uint64_t DeviceTables::read_counter(uint32_t event) const {
  return read_word(layout_.counter_at(event));
}

Promise DeviceTables::read_promise(uint32_t event) const {
  return {read_word(layout_.counter_at(event) + WindowLayout::kPromiseAt)};
}

std::vector<TraceRecord> DeviceTables::read_trace() const {
  std::vector<TraceRecord> records(size_t{shape_.workers} * trace_records_);
  if (records.empty()) return records;
  accelerator_of(world_).copy(records.data(), trace_->as<void>(),
                              records.size() * sizeof(TraceRecord), {});
  await_stream(world_, {}, "a trace");
  return records;
}

std::vector<uint32_t> DeviceTables::read_trace_used() const {
  std::vector<uint32_t> used(trace_records_ > 0 ? shape_.workers : 0);
  if (used.empty()) return used;
  accelerator_of(world_).copy(used.data(), trace_used_->as<void>(), used.size() * sizeof(uint32_t),
                              {});
  await_stream(world_, {}, "a trace");
  return used;
}

}  // namespace tokenyard::megakernel
