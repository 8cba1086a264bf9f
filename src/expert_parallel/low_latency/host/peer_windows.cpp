#include "expert_parallel/low_latency/host/peer_windows.hpp"
#include "fabric/world_access.hpp"

#include <vector>

#include "fabric/collective_step.hpp"
#include "fabric/exchange_window_addresses.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr const char* kAllocation = "LowLatency: window";

}  // namespace

PeerWindows::PeerWindows(const Setup& setup)
    : setup_(setup), mine_(allocate_on_all(setup.world, setup.layout.bytes(), kAllocation)) {}

void PeerWindows::accompany(World& world) {
  accompany_step(world, kAllocation);
}

PeerWindows::~PeerWindows() {
  if (is_known_ && mine_) mine_.quarantine();
}

void PeerWindows::fill(const CallStreams& streams, Drained drained) {
  World& world = setup_.world;
  Accelerator& accelerator = setup_.accelerator;
  const WindowLayout& layout = setup_.layout;
  const Stream stream{};
  const size_t staging = layout.staging_bytes();
  accelerator.fill(mine_.data(), 0xff, staging, stream);
  accelerator.fill(mine_.data() + staging, 0, layout.bytes() - staging, stream);
  const std::vector<Drained> all_drained(world.size(), drained);
  accelerator.copy(mine_.data() + layout.drained(0), all_drained.data(),
                   all_drained.size() * sizeof(Drained), stream);
  streams.await(stream, "filled staging");
}

void PeerWindows::exchange(const CallStreams& streams, const PutPeers* put_peers) {
  World& world = setup_.world;
  Accelerator& accelerator = setup_.accelerator;
  const Stream stream{};
  windows_.layout = setup_.layout;
  exchange_window_addresses(
      world, mine_, "LowLatency: windows", [&](std::span<std::byte* const> mapped) {
        const std::vector<std::byte*> windows =
            put_peers != nullptr ? put_peers->with_mirrors(mapped)
                                 : std::vector<std::byte*>(mapped.begin(), mapped.end());
        const size_t bytes = windows.size() * sizeof(std::byte*);
        windows_.peers = Peers::of(windows, world.rank(), nullptr);
        if (windows.size() <= Peers::kAtHand) return;
        if (!table_) table_.emplace(accelerator, bytes, DeviceMemory::Kind::device);
        accelerator.copy(table_->as<void>(), windows.data(), bytes, stream);
        streams.await(stream, "the table of windows");
        windows_.peers.table = table_->as<std::byte*>();
      });
  is_known_ = true;
}

}  // namespace tokenyard::low_latency
