#include "collectives/device/host/message_links.hpp"

#include <algorithm>

#include "collectives/device/host/launch_shapes.hpp"
#include "device/await_stream.hpp"
#include "fabric/gather.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

/// Bytes of all rings of a rank, unless options say otherwise: messages that do not wait for their
/// receiver.
constexpr uint32_t kMessageRingsBytes = 8 << 20;
/// Slots of a ring, at least: one is filled while the network carries another one.
constexpr uint32_t kSlotsLeast = 2;

/// Returns the members of other hosts.
std::vector<uint32_t> far_members(const HostMap& map, uint32_t member) {
  std::vector<uint32_t> peers;
  for (uint32_t peer = 0; peer < map.ranks(); ++peer)
    if (map.host_of[peer] != map.host_of[member]) peers.push_back(peer);
  return peers;
}

}  // namespace

MessageLinks::MessageLinks(World& world, const Members& members, const HostMap& map,
                           const Options& options)
    : world_(world),
      accelerator_(accelerator_of(world)),
      members_(members),
      map_(map),
      peers_(far_members(map, members.self)) {
  queue_.emplace(*network_of(world));
  const std::vector<uint32_t> found =
      gather(world_, uint32_t{queue_->exist()}, "DeviceCollectives: a queue for messages");
  for (const uint32_t slot : members.slots)
    if (found[slot] == 0 && !without_queue_) without_queue_ = slot;
  if (without_queue_) {
    queue_.reset();
    return;
  }
  layout_ = layout(options);
  accelerator_.prepare(messages_between_hosts_kernel.entry);
  window_.emplace(world_, layout_.bytes());
  counts_.emplace(accelerator_, peers_.size() * sizeof(LinkCounts), DeviceMemory::Kind::device);
  accelerator_.fill(window_->data(), 0, layout_.words_bytes(), Stream{});
  accelerator_.fill(counts_->as<void>(), 0, peers_.size() * sizeof(LinkCounts), Stream{});
  await_stream(accelerator_, world_.rank(), Stream{}, 2 * world_.timeout(),
               "DeviceCollectives: an empty window for messages between hosts");
  fill_tables();
}

MessageWindow MessageLinks::layout(const Options& options) const {
  uint32_t links_max = 0;
  for (uint32_t host = 0; host < map_.hosts(); ++host)
    links_max = std::max(links_max, map_.ranks() - map_.size_of(host));
  const bool on_gpu = accelerator_.kind() == AcceleratorKind::gpu;
  const uint32_t asked = options.chunk_bytes * (on_gpu ? kChunksOfSlot : 1);
  const uint32_t bytes =
      options.ring_bytes != 0 ? options.ring_bytes : kMessageRingsBytes / links_max;
  const uint32_t data = std::max(std::min(asked, bytes / kSlotsLeast) / 16 * 16, 16u);
  return {
      .links_max = links_max, .capacity = std::max(bytes / data, kSlotsLeast), .data_bytes = data};
}

/// Tells all ranks where this rank's window lies, and writes the table of links.
void MessageLinks::fill_tables() {
  struct Mine {
    uint64_t offset, key;
  };
  window_->make_known();
  const std::vector<Mine> everybodys =
      gather(world_, Mine{.offset = window_->target().offset, .key = window_->target().key},
             "DeviceCollectives: windows of messages");
  std::vector<HostLink> links;
  for (const uint32_t peer : peers_) {
    const std::vector<uint32_t> theirs = far_members(map_, peer);
    const Mine& window = everybodys[members_.slots[peer]];
    links.push_back(
        {.rank = peer,
         .slot = members_.slots[peer],
         .there = static_cast<uint32_t>(std::ranges::lower_bound(theirs, members_.self) -
                                        theirs.begin()),
         .window = {.key = static_cast<MemoryKey>(window.key), .offset = window.offset}});
  }
  const size_t bytes = links.size() * sizeof(HostLink);
  links_.emplace(accelerator_, bytes, DeviceMemory::Kind::device);
  accelerator_.copy(links_->as<void>(), links.data(), bytes, Stream{});
  await_stream(accelerator_, world_.rank(), Stream{}, 2 * world_.timeout(),
               "DeviceCollectives: links of messages");
}

void MessageLinks::require_queue() const {
  if (!without_queue_) return;
  throw Unsupported("messages between hosts",
                    too_few_queues(*network_of(world_), 1, *without_queue_));
}

std::optional<uint32_t> MessageLinks::link_to(uint32_t member) const {
  const auto found = std::ranges::lower_bound(peers_, member);
  if (found == peers_.end() || *found != member) return std::nullopt;
  return static_cast<uint32_t>(found - peers_.begin());
}

MessagesBetweenParams MessageLinks::params_of(const MessagesParams& all, uint32_t far_count,
                                              uint32_t near_blocks) const {
  MessagesBetweenParams params{.all = all,
                               .far_count = far_count,
                               .near_blocks = near_blocks,
                               .far = layout_,
                               .far_window = window_->data(),
                               .key = window_->target().key,
                               .links = links_->as<const HostLink>(),
                               .counts = counts_->as<LinkCounts>(),
                               .queues = network_of(world_)->queues(),
                               .queue = queue_->number()};
  params.all.count -= far_count;
  return params;
}

void MessageLinks::give_back() {
  if (window_) window_->give_back();
}

}  // namespace tokenyard::device_collectives
