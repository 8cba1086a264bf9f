// Registered memory: this rank's, which peers learn of when they ask and let go of when they are
// told, and peers'.
#include <utility>

#include "libfabric/libfabric_transport.hpp"
#include "net/protocol_error.hpp"

namespace tokenyard::libfabric {

namespace {

uint64_t span_begin(std::span<const std::byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data());
}

}  // namespace

LibfabricTransport::Remote* LibfabricTransport::resolve(Peer& peer, uint32_t queue, MemoryKey key) {
  const auto [at, is_new] = peer.remotes.try_emplace(key);
  if (is_new) enqueue(peer, {.kind = MessageKind::ask, .key = key});
  Remote& remote = at->second;
  if (remote.state == Remote::State::open && !remote.released) return &remote;
  if (remote.state == Remote::State::asked) return nullptr;
  if (remote.state == Remote::State::none) peer.remotes.erase(at);
  // The right key is not for a peer that does not hold it.
  listener_->refused(peer.rank, queue, NetworkCheck::target,
                     {.region = region_of_key(key), .expected = 0, .seen = key});
  return nullptr;
}

uint32_t LibfabricTransport::region_with(std::span<const std::byte> bytes) const {
  for (uint32_t region = 0; region < kNetworkRegions; ++region) {
    if (!registered_[region]) continue;
    const auto memory = memory_[region];
    if (lies_within(span_begin(bytes) - span_begin(memory), bytes.size(), memory.size()))
      return region + 1;
  }
  return 0;
}

void LibfabricTransport::register_memory(MemoryKey key, std::span<std::byte> memory) {
  open(key, memory, provider_->register_memory(memory, true), true);
}

void LibfabricTransport::register_gpu_memory(MemoryKey key, std::span<std::byte> memory) {
  open(key, memory, provider_->register_gpu_memory(memory), false);
}

void LibfabricTransport::open(MemoryKey key, std::span<std::byte> memory,
                              std::unique_ptr<Region> registered, bool by_host) {
  const uint32_t region = region_of_key(key);
  registered_[region] = std::move(registered);
  memory_[region] = memory;
  keys_[region] = key;
  holders_[region].clear();
  regions_.open(key, memory, by_host);
}

void LibfabricTransport::withdraw(uint32_t region) {
  regions_.close(region);
  if (!registered_[region]) return;
  Closing& closing = closing_.emplace_back(
      Closing{.key = keys_[region], .region = std::move(registered_[region]), .peers = {}});
  for (const uint32_t rank : std::exchange(holders_[region], {})) {
    Peer& peer = *peers_[rank];
    if (peer.broken || peer.left) continue;
    closing.peers.insert(rank);
    enqueue(peer, {.kind = MessageKind::withdrawn, .key = closing.key});
  }
  released(place_.rank, closing.key);  // By nobody, if nobody was told.
}

std::optional<uint32_t> LibfabricTransport::holder_of(uint32_t region) const {
  for (const Closing& closing : closing_)
    if (region_of_key(closing.key) == region) return *closing.peers.begin();
  if (readers_[region] == 0) return std::nullopt;
  const auto reader = std::ranges::find_if(writings_, [&](const Writing& writing) {
    return writing.under_way &&
           std::ranges::find(writing.regions, region + 1) != writing.regions.end();
  });
  return reader == writings_.end() ? place_.rank : reader->peer;
}

void LibfabricTransport::released(uint32_t rank, MemoryKey key) {
  for (Closing& closing : closing_)
    if (closing.key == key) closing.peers.erase(rank);
  std::erase_if(closing_, [](const Closing& closing) { return closing.peers.empty(); });
}

void LibfabricTransport::stop_writing(Peer& peer, MemoryKey key, Remote& remote) {
  remote.released = true;
  for (uint32_t number = 0; number < peer.queues.size(); ++number) {
    bool any = false;
    for (Part& part : peer.queues[number].parts) {
      any = any || part.key == key;
      part.skipped = part.skipped || part.key == key;
    }
    if (!any) continue;
    listener_->refused(peer.rank, number, NetworkCheck::target,
                       {.region = region_of_key(key), .expected = 0, .seen = key});
  }
  if (remote.writes == 0) release(peer, key);
}

void LibfabricTransport::release(Peer& peer, MemoryKey key) {
  for (uint32_t queue = 0; queue < peer.queues.size() && order_ == Order::counted; ++queue) {
    Message fence{.kind = MessageKind::fence, .queue = static_cast<uint16_t>(queue)};
    end_group(peer, fence);
    enqueue(peer, fence);
  }
  enqueue(peer, {.kind = MessageKind::released, .key = key});
  peer.remotes.erase(key);
}

}  // namespace tokenyard::libfabric
