/// What a LowLatency object keeps on its device from one call to the next.
#include <algorithm>
#include <vector>

#include "device/await_stream.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"
#include "fabric/meet_windows.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

low_latency::Plan agreed_plan(World& world, const LowLatencyOptions& options) {
  low_latency::agree_on_options(world, options);
  return low_latency::make_plan(options, world.size(), world.accelerator().kind(),
                                world.accelerator().capacity());
}

}  // namespace

LowLatency::Parts::Parts(World& world, const LowLatencyOptions& options)
    : world(world),
      options(options),
      accelerator_(world.accelerator()),
      arena_(world.arena()),
      plan_(agreed_plan(world, options)),
      layout_(low_latency::window_layout(options, world.size())),
      sums_(low_latency::SumsLayout::of(options.hidden)),
      homes_(low_latency::ExpertHomes::of(options.experts, world.size())),
      // Before batches, which may not fit the machine where this does not fit the arena.
      window_(arena_.allocate(layout_.bytes(), Stream{})),
      workspace_(accelerator_, sizeof(low_latency::Workspace), DeviceMemory::Kind::device),
      complaint_(accelerator_, sizeof(low_latency::Complaint), DeviceMemory::Kind::shared),
      masks_(accelerator_, world.alarm(), world.size()),
      last_stream_(accelerator_) {
  accelerator_.prepare(low_latency::dispatch_kernel.entry);
  accelerator_.prepare(low_latency::combine_kernel.entry);
  accelerator_.prepare(low_latency::combine_logfmt_kernel.entry);
  for (uint32_t number = 0; number < batches_.size(); ++number)
    batches_[number] =
        std::make_shared<low_latency::Batch>(accelerator_, options, world.size(), number);
  open_windows();
}

LowLatency::Parts::~Parts() {
  try {
    // What follows frees memory that a kernel under way would use.
    if (last_stream_.in_use() && !closed_)
      await_stream(last_stream_.get(), "the end of its last call");
  } catch (const std::exception&) {
    // A destructor cannot report it.
  }
  // A peer may store here yet: what it sends to nobody in particular is not awaited by anybody.
  if (window_) window_.quarantine();
}

/// Collective. The window is ready before anybody learns where it lies.
void LowLatency::Parts::open_windows() {
  const Stream stream{};
  const size_t staging = layout_.staging_bytes();
  accelerator_.fill(window_.data(), 0xff, staging, stream);
  accelerator_.fill(window_.data() + staging, 0, layout_.bytes() - staging, stream);
  await_stream(stream, "filled staging");
  windows_.layout = layout_;
  meet_windows(world, window_, "LowLatency: windows", [&](std::span<std::byte* const> windows) {
    windows_.peers = Peers::of(windows, world.rank(), nullptr);
    if (windows.size() <= Peers::kAtHand) return;
    window_table_.emplace(accelerator_, windows.size_bytes(), DeviceMemory::Kind::device);
    accelerator_.copy(window_table_->as<void>(), windows.data(), windows.size_bytes(), stream);
    await_stream(stream, "the table of windows");
    windows_.peers.table = window_table_->as<std::byte*>();
  });
}

void LowLatency::Parts::await_stream(Stream stream, const std::string& what) {
  // A call ends at the latest when kTimesLate timeouts have passed; what else the caller has
  // enqueued has another.
  const auto patience = (low_latency::kTimesLate + 1) * std::max(longest_timeout_, world.timeout());
  tokenyard::await_stream(accelerator_, world.rank(), stream, patience, "LowLatency: " + what);
}

void LowLatency::Parts::wait(Stream stream) {
  await_stream(stream, "the end of a stream's work");
  last_stream_.forget(stream);
  check();
}

void LowLatency::Parts::require_open() const {
  if (closed_) throw InvalidArgument("exchange", "an open LowLatency", "a closed one");
}

void LowLatency::Parts::require_calls() const {
  require_open();
  world.alarm().check_ended("low latency");
}

/// The barrier comes after every rank's last kernel, so nothing of this object is on its way. Who
/// does not come to it may store here yet, and the window is kept; that is news only of a rank that
/// is not masked.
void LowLatency::Parts::close() {
  if (closed_) return;
  if (last_stream_.in_use()) await_stream(last_stream_.get(), "the end of its last call");
  end_batches();
  closed_ = true;
  try {
    world.barrier("LowLatency: close");
    window_ = ArenaBlock();
  } catch (const PeerLost& error) {
    if (!masks_.masked(error.facts.rank)) throw;
  } catch (const PeerTimeout& error) {
    if (!masks_.masked(error.facts.rank)) throw;
  }
}

LowLatency::Memory LowLatency::memory(const LowLatencyOptions& options, uint32_t ranks) {
  low_latency::check_options(options, ranks);
  return {.arena_bytes = low_latency::window_layout(options, ranks).bytes(),
          .device_bytes =
              2 * low_latency::Batch::bytes(options, ranks) + sizeof(low_latency::Workspace),
          .combine_buffer_bytes = low_latency::Batch::combine_bytes(options, ranks)};
}

}  // namespace tokenyard
