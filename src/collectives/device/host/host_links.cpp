#include "collectives/device/host/host_links.hpp"

#include <algorithm>
#include <array>

#include "collectives/device/host/launch_shapes.hpp"
#include "device/await_stream.hpp"
#include "device/identity.hpp"
#include "device/table_image.hpp"
#include "fabric/agreement.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/claimed_queues.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::device_collectives {

namespace {

/// Warps of a block: those that move data, and the last one, which compares calls.
constexpr uint32_t kWarps = kBetweenThreadsMax / kWarpLanes, kHostWarps = 3;
/// All rings and stages of a rank take at most so much, and all places of its host's window.
constexpr size_t kLinksBytes = 32 << 20, kPlacesBytes = 32 << 20;
/// Data that travel with a greeting: more gain nothing by saving a message.
constexpr uint32_t kGreetingBytes = 8 << 10;

using BetweenKernel = Kernel<BetweenHostsParams>;

constexpr std::array kKernels = {
    &move_between_hosts_kernel,          &reduce_floats_between_hosts_kernel,
    &reduce_halves_between_hosts_kernel, &reduce_float8s_between_hosts_kernel,
    &reduce_bytes_between_hosts_kernel,  &reduce_integers16_between_hosts_kernel,
    &reduce_uint32_between_hosts_kernel, &reduce_int32_between_hosts_kernel,
    &reduce_uint64_between_hosts_kernel, &reduce_int64_between_hosts_kernel};

const BetweenKernel& kernel_of(const CallParams& call) {
  if (!call.movement.reduces) return move_between_hosts_kernel;
  switch (call.type) {
    case DataType::float32:
    case DataType::float64:
      return reduce_floats_between_hosts_kernel;
    case DataType::float16:
    case DataType::bfloat16:
      return reduce_halves_between_hosts_kernel;
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return reduce_float8s_between_hosts_kernel;
    case DataType::boolean:
    case DataType::uint8:
    case DataType::int8:
      return reduce_bytes_between_hosts_kernel;
    case DataType::uint16:
    case DataType::int16:
      return reduce_integers16_between_hosts_kernel;
    case DataType::uint32:
      return reduce_uint32_between_hosts_kernel;
    case DataType::int32:
      return reduce_int32_between_hosts_kernel;
    case DataType::uint64:
      return reduce_uint64_between_hosts_kernel;
    default:
      return reduce_int64_between_hosts_kernel;
  }
}

bool is_short_float(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 ||
         type == DataType::float8_e4m3fn || type == DataType::float8_e5m2;
}

}  // namespace

uint32_t first_out_of_reach(const World& world) {
  const Topology& topology = world.topology();
  const HostMap map = host_map_of(world);
  for (const uint32_t rank : present_ranks(world)) {
    const Reach reach = topology.peers[rank].reach;
    const bool is_here = topology.host_of[rank] == topology.host_of[world.rank()];
    const bool near = reach == Reach::self || reach == Reach::load_store;
    if (is_here ? !near : reach != Reach::put_signal && map.is_linked(world.rank(), rank))
      return rank;
  }
  return kAllReached;
}

HostMap host_map_of(const World& world, const Members& members) {
  std::vector<uint32_t> host_of, hosts;
  for (const uint32_t slot : members.slots) {
    const uint32_t host = world.topology().host_of[slot];
    const auto found = std::ranges::find(hosts, host);
    host_of.push_back(static_cast<uint32_t>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(host);
  }
  return HostMap(host_of);
}

HostLinks::Queues::Queues(Network& network) : network_(network) {
  // Others find queues, too.
  const uint32_t most = std::clamp(network.queues_per_peer() / 2, 1u, kChannelsMax);
  for (uint32_t count = most; count > 0 && numbers_.empty(); --count)
    numbers_ = network.claim_queues(count);
}
HostLinks::Queues::~Queues() {
  network_.give_back_queues(numbers_);
}
void HostLinks::Queues::keep(uint32_t count) {
  network_.give_back_queues({numbers_.begin() + count, numbers_.end()});
  numbers_.resize(count);
}

HostLinks::HostLinks(World& world, const Members& members, const Options& options)
    : world_(world),
      accelerator_(accelerator_of(world)),
      members_(members),
      map_(host_map_of(world, members)),
      peers_(map_.peers_of(members.self)),
      queues_(*network_of(world)),
      channels_(agree_on_channels()),
      far_layout_(far_layout(options)),
      near_layout_(near_layout(options)),
      near_(allocate_on_all(world, near_layout_.bytes(), "DeviceCollectives: window in a host",
                            ArenaEnd::upper)),
      far_(world, far_layout_.bytes()),
      counts_(accelerator_, channels_ * peers_.size() * sizeof(LinkCounts),
              DeviceMemory::Kind::device),
      own_partials_(accelerator_, size_t{channels_} * kLinkRounds * far_layout_.slot_bytes,
                    DeviceMemory::Kind::device),
      offsets_(accelerator_, size_t{channels_} * kRoles * map_.ranks() * sizeof(uint64_t),
               DeviceMemory::Kind::device),
      first_epoch_(epoch_before(world)) {
  for (const BetweenKernel* kernel : kKernels) accelerator_.prepare(kernel->entry);
  accelerator_.prepare(splits_between_hosts_kernel.entry);
  accelerator_.fill(near_.data(), 0, near_layout_.words_bytes(), Stream{});
  accelerator_.fill(far_.data(), 0, far_layout_.words_bytes(), Stream{});
  await_copies("an empty window between hosts");
  try {
    fill_tables();
  } catch (const std::exception&) {
    if (is_known_) near_.quarantine();
    throw;
  }
}

HostLinks::~HostLinks() {
  if (is_known_) near_.quarantine();
}

void HostLinks::give_back() {
  is_known_ = false;
  far_.give_back();
}

void HostLinks::await_copies(const char* what) const {
  tokenyard::await_stream(accelerator_, world_.rank(), Stream{}, 2 * world_.timeout(),
                          std::string("DeviceCollectives: ") + what);
}

/// Returns the least number of queues that any rank has claimed.
uint32_t HostLinks::agree_on_channels() {
  const auto mine = static_cast<uint32_t>(queues_.numbers().size());
  const std::vector<uint32_t> all = gather(world_, mine, "DeviceCollectives: queues");
  const auto least =
      std::ranges::min_element(members_.slots, {}, [&](uint32_t slot) { return all[slot]; });
  if (all[*least] == 0)
    throw Unsupported("DeviceCollectives", too_few_queues(*network_of(world_), 1, *least));
  queues_.keep(all[*least]);
  return all[*least];
}

/// Returns the most ranks of whose results one rank makes a partial sum.
uint32_t HostLinks::served_max() const {
  std::vector<uint32_t> served(map_.ranks(), 0);
  for (uint32_t rank = 0; rank < map_.ranks(); ++rank)
    for (uint32_t host = 0; host < map_.hosts(); ++host) ++served[map_.forwarder(rank, host)];
  return std::ranges::max(served);
}

uint32_t HostLinks::slot_bytes(const Options& options) const {
  const bool on_gpu = accelerator_.kind() == AcceleratorKind::gpu;
  const size_t asked = size_t{options.chunk_bytes} * (on_gpu ? kChunksOfSlot : 1);
  const size_t slots = size_t{2} * map_.links_max() * channels_ * kLinkRounds * map_.locals_max();
  const size_t places = size_t{2} * channels_ * kHostRounds * map_.locals_max() * served_max();
  const size_t room = std::min(kLinksBytes / slots, kPlacesBytes / places);
  return static_cast<uint32_t>(std::max<size_t>(std::min(asked, room) / 64 * 64, 64));
}

LinkWindow HostLinks::far_layout(const Options& options) const {
  return {.links_max = map_.links_max(),
          .channels = channels_,
          // The sizes that a rank sends to and expects from each travel with it, too.
          .greeting_bytes = std::max({std::min(options.slot_bytes, kGreetingBytes) / 16 * 16, 16u,
                                      map_.ranks() * static_cast<uint32_t>(sizeof(CountWord))}),
          .capacity = kLinkRounds * map_.locals_max(),
          .slot_bytes = slot_bytes(options)};
}

HostWindow HostLinks::near_layout(const Options& options) const {
  const uint32_t locals = map_.locals_max();
  return {.channels = channels_,
          .locals_max = locals,
          // A rank alone on its host stores nothing there.
          .chunks = locals == 1 ? 0 : locals * served_max(),
          .chunk_bytes = slot_bytes(options)};
}

/// Tells all ranks where this rank's window lies, and writes the tables of kernels.
void HostLinks::fill_tables() {
  struct Mine {
    uint64_t near_offset, far_offset, far_key;
  };
  is_known_ = true;
  far_.make_known();
  const std::vector<Mine> everybodys = gather(world_,
                                              Mine{.near_offset = near_.offset(),
                                                   .far_offset = far_.target().offset,
                                                   .far_key = far_.target().key},
                                              "DeviceCollectives: windows between hosts");
  const uint32_t ranks = map_.ranks(), rank = members_.self, host = map_.host_of[rank];
  std::vector<HostLink> links;
  std::vector<uint32_t> link_to(ranks, kNoLink);
  for (const uint32_t peer : peers_) {
    const std::vector<uint32_t> theirs = map_.peers_of(peer);
    link_to[peer] = static_cast<uint32_t>(links.size());
    links.push_back(
        {.rank = peer,
         .slot = members_.slots[peer],
         .there = static_cast<uint32_t>(std::ranges::find(theirs, rank) - theirs.begin()),
         .window = {.key = static_cast<MemoryKey>(everybodys[members_.slots[peer]].far_key),
                    .offset = everybodys[members_.slots[peer]].far_offset}});
  }
  std::vector<uint32_t> first{0}, members, first_served{0}, served;
  for (const std::vector<uint32_t>& of_host : map_.members) {
    members.insert(members.end(), of_host.begin(), of_host.end());
    first.push_back(static_cast<uint32_t>(members.size()));
  }
  for (const uint32_t local : map_.members[host]) {
    for (uint32_t other = 0; other < ranks; ++other)
      if (map_.forwarder(other, host) == local) served.push_back(other);
    first_served.push_back(static_cast<uint32_t>(served.size()));
  }
  std::vector<std::byte*> addresses;
  for (const uint32_t slot : members_.slots) {
    std::byte* const base = arena_of(world_).base_of(slot);
    addresses.push_back(base == nullptr ? nullptr : base + everybodys[slot].near_offset);
  }
  TableImage image;
  const size_t links_at = image.append(links), addresses_at = image.append(addresses);
  const size_t host_of_at = image.append(map_.host_of), place_of_at = image.append(map_.place_of);
  const size_t first_at = image.append(first), members_at = image.append(members);
  const size_t first_served_at = image.append(first_served), served_at = image.append(served);
  const size_t link_to_at = image.append(link_to);
  tables_ = std::make_unique<DeviceMemory>(accelerator_, image.size(), DeviceMemory::Kind::device);
  std::byte* const base = tables_->as<std::byte>();
  accelerator_.copy(base, image.data(), image.size(), Stream{});
  await_copies("tables of links");
  const auto words_at = [&](size_t at) { return reinterpret_cast<const uint32_t*>(base + at); };
  links_ = reinterpret_cast<const HostLink*>(base + links_at);
  hosts_ = {.host_of = words_at(host_of_at),
            .place_of = words_at(place_of_at),
            .first = words_at(first_at),
            .members = words_at(members_at),
            .first_served = words_at(first_served_at),
            .served = words_at(served_at),
            .link_to = words_at(link_to_at),
            .hosts = map_.hosts(),
            .host = host,
            .place = map_.place_of[rank],
            .locals = map_.size_of(host),
            .served_max = served_max()};
  windows_ = Peers::of(addresses, rank, reinterpret_cast<std::byte* const*>(base + addresses_at));
}

BetweenHostsParams HostLinks::params_of(const CallParams& call) const {
  BetweenHostsParams params{.call = call,
                            .hosts = hosts_,
                            .near = near_layout_,
                            .near_windows = windows_,
                            .far = far_layout_,
                            .far_window = far_.data(),
                            .key = far_.target().key,
                            .links = links_,
                            .link_count = static_cast<uint32_t>(peers_.size()),
                            .counts = counts_.as<LinkCounts>(),
                            .queues = network_of(world_)->queues(),
                            .queue_of = {},
                            .own_partials = own_partials_.as<std::byte>(),
                            .first_epoch = first_epoch_,
                            .chunk_bytes = 0,
                            .wider = 1,
                            .with_greeting = false,
                            .raw = map_.locals_max() == 1};
  std::ranges::copy(queues_.numbers(), params.queue_of);
  return params;
}

LaunchShape HostLinks::shape_of(uint32_t blocks) const {
  const bool on_host = accelerator_.kind() != AcceleratorKind::gpu;
  return {.blocks = std::clamp(blocks, 1u, channels_),
          .warps = on_host ? kHostWarps : kWarps,
          .overlap_previous = true};
}

void HostLinks::launch(const CallParams& call, uint32_t blocks, Stream stream) {
  BetweenHostsParams params = params_of(call);
  const Movement& movement = call.movement;
  const uint64_t bytes = movement.bytes();
  const bool widened = movement.reduces && !params.raw && is_short_float(call.type);
  params.wider = static_cast<uint32_t>(widened ? sizeof(float) / bytes_of(call.type) : 1);
  // A reduction inside a host comes before the greeting's data otherwise.
  const uint64_t chunks = movement.input_has_parts && !movement.reduces ? map_.locals_max() : 1;
  params.with_greeting = bytes > 0 && (params.raw || !movement.reduces) &&
                         bytes <= far_layout_.slot_bytes &&
                         chunks * ((bytes + 15) / 16 * 16) <= far_layout_.greeting_bytes;
  params.chunk_bytes =
      params.with_greeting
          ? static_cast<uint32_t>(bytes)
          : link_chunk_bytes(bytes, channels_, far_layout_.slot_bytes / params.wider);
  tokenyard::launch(accelerator_, kernel_of(call), shape_of(blocks), stream, params);
}

void HostLinks::launch_splits(const CallParams& call, const SplitArrays& arrays,
                              std::span<const CountWord> known, uint32_t blocks, Stream stream) {
  SplitsBetweenParams params{.between = params_of(call),
                             .arrays = arrays,
                             .offsets = offsets_.as<uint64_t>(),
                             .known = {}};
  params.between.call.movement.input_has_parts = true;
  params.between.call.movement.result_has_parts = true;
  std::ranges::copy(known, params.known);
  tokenyard::launch(accelerator_, splits_between_hosts_kernel, shape_of(blocks), stream, params);
}

void HostLinks::drain() {
  if (network_of(world_)->drain(accelerator_.now() + world_.timeout())) return;
  throw PeerTimeout({.rank = world_.rank(),
                     .phase = "DeviceCollectives: the network's last requests",
                     .waited_s = std::chrono::duration<double>(world_.timeout()).count()});
}

}  // namespace tokenyard::device_collectives
