#include "expert_parallel/internode/host/rails.hpp"
#include "device/table_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>

#include "device/await_stream.hpp"
#include "expert_parallel/internode/kernels/rail_shared.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::internode {

namespace {

/// A lane stands for each rank of a host.
constexpr uint32_t kLocalsMax = kWarpLanes;

/// Warps of a block that move rows on a GPU, as the prototype found best (H200).
constexpr uint32_t kMoversGpu = 15;
constexpr uint32_t kMoversHost = 3;
/// Slots that each holds, as far as a block's memory goes. On the host it depends on the movers, so
/// that tests run both.
constexpr uint32_t held_by(uint32_t movers, AcceleratorKind kind) {
  return kind == AcceleratorKind::gpu || movers % 2 == 0 ? kHeldMax : 1;
}
/// The same of combine (H200: with 8 and 4 hosts, 8 to 13 differ by 1 %; with 2, 10 are best).
constexpr uint32_t kAddersGpu = 10;
/// Returns how many of them send. A token is built once, however many hosts want it, and a slot
/// that arrives is one host's: the fewer hosts, the more of the work is sending. 3 of 15 for 8
/// hosts, as in the prototype, and 6 for 2. A token's few choices reach no more of more hosts.
constexpr uint32_t senders_of(uint32_t movers, uint32_t hosts) {
  const uint32_t per_sender = std::min(hosts, 8u) + 3;
  return std::clamp((2 * movers + per_sender - 1) / per_sender, 1u, movers - 1);
}

/// Slots of a put at least, while more are to come: BF16 rows of 7168 take 2.3 us of a link of
/// 50 GB/s. A call's first put waits for so many, and a link takes a message per 0.1 us.
constexpr uint32_t kChunkMax = 8;

/// Tokens that a lane each counts, and whose places are kept together. Few in the simulator, where
/// calls of a few tokens show the sums over groups, warps and blocks.
constexpr uint32_t group_bits_of(AcceleratorKind kind) {
  return kind == AcceleratorKind::simulated ? 1 : 5;
}

constexpr size_t kMebibyte = size_t{1} << 20;

/// Queues of an exchange at every peer.
constexpr uint32_t kFillQueue = 0, kDrainQueue = 1, kQueues = 2;

/// Returns the bytes of a ring. It must hold the bytes of 20 us: 1 MB at 50 GB/s,
/// where few peers share the rate more. All rings of a rank take at most 64 MiB.
uint32_t ring_bytes_of(const RailExchange::Shape& shape, uint32_t links, AcceleratorKind kind) {
  const auto slot_of = [&](uint32_t row_bytes) {
    return size_t{SlotLayout{
        .row_bytes = row_bytes, .scale_words = 0, .choices = shape.topk, .weights = shape.topk}
                      .bytes()};
  };
  const size_t bf16 = slot_of(shape.hidden * 2), fp32 = slot_of(shape.hidden * 4);
  size_t bytes = shape.ring_rows * bf16;
  if (shape.ring_rows == 0 && kind != AcceleratorKind::gpu) bytes = 16 * bf16;
  if (shape.ring_rows == 0 && kind == AcceleratorKind::gpu)
    bytes = std::min(std::clamp(8 * kMebibyte / links, kMebibyte, 4 * kMebibyte),
                     32 * kMebibyte / links);
  return static_cast<uint32_t>((std::max(bytes, fp32) + 127) / 128 * 128);
}

/// Returns the slots per put and per credit, at least. Half a ring at most: else a sender that
/// waits for room for a put, and a receiver that waits for slots to credit, would wait for each
/// other.
uint32_t chunk_of(const RailExchange::Shape& shape, uint32_t capacity) {
  if (shape.chunk_rows == 0) return std::clamp(capacity / 8, 1u, kChunkMax);
  return std::clamp(shape.chunk_rows, 1u, std::max(1u, capacity / 2));
}

/// Returns the slots per put at most. A put's places in the stage can be written again once the
/// network has read all of it: where one peer has the link to itself, the next rows wait for that
/// (H200, 2 hosts, of the link with puts of a quarter and an eighth of a ring: BF16 87 and 94 %,
/// FP8 77 and 88, combine 73 and 86). Among several peers, another one's put is on the link
/// meanwhile.
constexpr uint32_t put_slots_of(uint32_t links, uint32_t capacity) {
  return std::max(1u, capacity / (links == 1 ? 8 : 4));
}

/// Returns the most experts of any host.
uint32_t experts_max(const HostMap& map, const ExpertPartition& partition) {
  uint32_t most = 0;
  for (const std::vector<uint32_t>& members : map.members) {
    uint32_t experts = 0;
    for (const uint32_t rank : members) experts += partition.held_by(rank);
    most = std::max(most, experts);
  }
  return most;
}

WindowLayout layout_of(const RailExchange::Shape& shape, const HostMap& map, AcceleratorKind kind) {
  const uint32_t links = map.links_max();
  return {.ranks = map.ranks(),
          .local_experts_max = shape.partition.held_at_most(),
          .links_max = links,
          .greeting = {.locals_max = map.locals_max(),
                       .experts_max = experts_max(map, shape.partition)},
          .ring_bytes = ring_bytes_of(shape, links, kind)};
}

World& supported(World& world) {
  const HostMap map = host_map_of(world);
  if (map.locals_max() > kLocalsMax)
    throw Unsupported(
        "ExpertParallel",
        fmt::format("hosts of more than {} ranks have no exchange with other hosts", kLocalsMax));
  if (map.links_max() > kWarpLanes)
    throw Unsupported("ExpertParallel",
                      fmt::format("a rank would exchange rows with {} ranks of other hosts, and at "
                                  "most {} are possible",
                                  map.links_max(), kWarpLanes));
  return world;
}

}  // namespace

void find_slowest(const HostMap& map, uint32_t self, ExpertParallel::Metrics& metrics) {
  std::vector<double> of_host(map.hosts()), of_rail(map.locals_max());
  for (uint32_t rank = 0; rank < map.ranks(); ++rank) {
    if (map.is_absent(rank) || rank == self) continue;
    const double waited = metrics.wait_seconds_by_peer[rank] +
                          metrics.link_credit_wait_seconds_by_peer[rank] +
                          metrics.link_row_wait_seconds_by_peer[rank];
    if (map.host_of[rank] != map.host_of[self]) of_host[map.host_of[rank]] += waited;
    of_rail[map.place_of[rank]] += waited;
  }
  const auto longest = [](const std::vector<double>& waited) -> std::optional<uint32_t> {
    const auto most = std::ranges::max_element(waited);
    if (*most == 0) return std::nullopt;
    return static_cast<uint32_t>(most - waited.begin());
  };
  metrics.slowest_host = longest(of_host);
  metrics.slowest_rail = longest(of_rail);
}

RailExchange::RailExchange(World& world, const Shape& shape)
    : world_(supported(world)),
      accelerator_(accelerator_of(world)),
      object_(bootstrap_of(world).timeout_reports().new_object()),
      shape_(shape),
      map_(host_map_of(world)),
      peers_(map_.peers_of(world.rank())),
      columns_{.ranks = map_.ranks(), .hosts = map_.hosts(), .experts = shape.experts},
      layout_(layout_of(shape, map_, accelerator_.kind())),
      near_(allocate_on_all(world, layout_.near_bytes(), "ExpertParallel: window in a host",
                            ArenaEnd::upper)),
      far_(world, layout_.far_bytes() +
                      (network_of(world)->takes_gpu_memory() ? 0 : layout_.rings_bytes())),
      queues_(std::in_place, *network_of(world), kQueues) {
  if (network_of(world)->takes_gpu_memory())
    rings_.emplace(world, layout_.rings_bytes(), NetworkMemory::Use::puts_alone);
  accelerator_.prepare(dispatch_kernel.entry);
  accelerator_.prepare(combine_kernel.entry);
  accelerator_.fill(near_.data(), 0, layout_.near_bytes(), Stream{});
  accelerator_.fill(far_.data(), 0, layout_.far_bytes(), Stream{});
  accelerator_.fill(rings_data(), 0, layout_.rings_bytes(), Stream{});
  workspace_.emplace(accelerator_,
                     RailTables{.base = nullptr,
                                .links = static_cast<uint32_t>(peers_.size()),
                                .blocks_max = shape.blocks_max,
                                .columns = columns_.count()}
                         .bytes(),
                     DeviceMemory::Kind::device);
  statistics_.links = static_cast<uint32_t>(peers_.size());
  const size_t statistics_bytes = statistics_.count() * sizeof(uint64_t);
  totals_.emplace(accelerator_, statistics_bytes, DeviceMemory::Kind::device);
  shown_.emplace(accelerator_, statistics_bytes, DeviceMemory::Kind::shared);
  statistics_.totals = totals_->as<uint64_t>();
  statistics_.shown = shown_->as<uint64_t>();
  await_copies("zeroed words");
  try {
    fill_tables();
  } catch (const std::exception&) {
    if (is_known_) near_.quarantine();
    throw;
  }
}

RailExchange::~RailExchange() {
  if (is_known_) near_.quarantine();
}

void RailExchange::await_copies(const char* what) const {
  tokenyard::await_stream(accelerator_, world_.rank(), Stream{}, 2 * world_.timeout(),
                          std::string("ExpertParallel between hosts: ") + what);
}

/// Tells all ranks where this rank's window lies, and writes the tables of kernels.
void RailExchange::fill_tables() {
  struct Mine {
    uint64_t near_offset, far_offset, rings_offset;
    uint32_t far_key, rings_key, has_queues, zero;
  };
  is_known_ = true;
  far_.make_known();
  if (rings_) rings_->make_known();
  const std::vector<Mine> everybodys = gather(world_,
                                              Mine{.near_offset = near_.offset(),
                                                   .far_offset = far_.target().offset,
                                                   .rings_offset = rings_target().offset,
                                                   .far_key = far_.target().key,
                                                   .rings_key = rings_target().key,
                                                   .has_queues = queues_->exist() ? 1u : 0u,
                                                   .zero = 0},
                                              "ExpertParallel: windows between hosts");
  const uint32_t ranks = map_.ranks(), hosts = map_.hosts(), rank = world_.rank();
  for (uint32_t peer = 0; peer < ranks; ++peer)
    if (!map_.is_absent(peer) && everybodys[peer].has_queues == 0) {
      give_back();  // All ranks refuse alike, so nobody writes.
      throw Unsupported("ExpertParallel", too_few_queues(*network_of(world_), kQueues, peer));
    }
  std::vector<Link> links;
  std::vector<uint32_t> link_to(hosts, 0);
  for (const uint32_t peer : peers_) {
    const std::vector<uint32_t> theirs = map_.peers_of(peer);
    if (map_.forwards(peer, rank))
      link_to[map_.host_of[peer]] = static_cast<uint32_t>(links.size());
    links.push_back(
        {.rank = peer,
         .host = map_.host_of[peer],
         .forwards = map_.forwards(peer, rank),
         .sends = map_.forwards(rank, peer),
         .there = static_cast<uint32_t>(std::ranges::find(theirs, rank) - theirs.begin()),
         .window = {.key = everybodys[peer].far_key, .offset = everybodys[peer].far_offset},
         .rings = {.key = everybodys[peer].rings_key, .offset = everybodys[peer].rings_offset}});
  }
  std::vector<uint32_t> first{0}, members;
  for (const std::vector<uint32_t>& of_host : map_.members) {
    members.insert(members.end(), of_host.begin(), of_host.end());
    first.push_back(static_cast<uint32_t>(members.size()));
  }
  std::vector<std::byte*> addresses;
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    std::byte* const base = map_.is_absent(peer) ? nullptr : arena_of(world_).base_of(peer);
    addresses.push_back(base == nullptr ? nullptr : base + everybodys[peer].near_offset);
  }
  TableImage image;
  const size_t links_at = image.append(links), addresses_at = image.append(addresses);
  const size_t host_of_at = image.append(map_.host_of), place_of_at = image.append(map_.place_of);
  const size_t first_at = image.append(first), members_at = image.append(members);
  const size_t link_to_at = image.append(link_to);
  tables_.emplace(accelerator_, image.size(), DeviceMemory::Kind::device);
  std::byte* const base = tables_->as<std::byte>();
  accelerator_.copy(base, image.data(), image.size(), Stream{});
  await_copies("tables of links");
  const auto words_at = [&](size_t at) { return reinterpret_cast<const uint32_t*>(base + at); };
  links_ = reinterpret_cast<const Link*>(base + links_at);
  link_to_ = words_at(link_to_at);
  hosts_ = {.host_of = words_at(host_of_at),
            .place_of = words_at(place_of_at),
            .first = words_at(first_at),
            .members = words_at(members_at),
            .hosts = hosts,
            .ranks = ranks,
            .host = map_.host_of[rank],
            .place = map_.place_of[rank],
            .locals = map_.size_of(map_.host_of[rank])};
  windows_ = Peers::of(addresses, rank, reinterpret_cast<std::byte* const*>(base + addresses_at));
}

uint32_t RailExchange::culprit_of(const WaitFacts& facts) {
  const std::lock_guard lock(naming_);
  if (culprit_) return *culprit_;
  Bootstrap& bootstrap = bootstrap_of(world_);
  const AbortFlag& flag = abort_flag_of(world_);
  bootstrap.report_timeout(object_, facts.rank);
  const auto is_settled = [&] {
    if (flag.has_ended()) return true;
    const std::vector<uint32_t> gone = flag.gone_ranks();
    const auto is_gone = [&](uint32_t rank) { return std::ranges::binary_search(gone, rank); };
    if (is_gone(bootstrap.timeout_reports().end_of_chain(object_, facts.rank))) return true;
    std::set<uint32_t> answering;
    for (const uint32_t rank : present_ranks(world_))
      if (!is_gone(rank)) answering.insert(rank);
    return bootstrap.timeout_reports().are_complete(object_, answering);
  };
  // Ranks that began the call with this one have all failed by the deadline of the longest wait;
  // their reports then take a moment.
  const std::chrono::duration<double> most = world_.timeout() * (1.0 + 1.0 / 4 + 1.0 / 8);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(
      most - std::chrono::duration<double>(facts.waited_s));
  if (!is_settled() && rest.count() > 0)
    (void)accelerator_.wait_until(accelerator_.now() + rest, is_settled);
  culprit_ = bootstrap.timeout_reports().end_of_chain(object_, facts.rank);
  // The rank may be alive, and wait for one that the job has told to be lost.
  const std::vector<uint32_t> lost = flag.lost_ranks();
  if (!lost.empty() && !std::ranges::binary_search(lost, *culprit_)) culprit_ = lost.front();
  return *culprit_;
}

NetworkTarget RailExchange::rings_target() const {
  return rings_ ? rings_->target() : far_.target() + layout_.far_bytes();
}

std::byte* RailExchange::rings_data() const {
  return rings_ ? rings_->data() : far_.data() + layout_.far_bytes();
}

RailRoute RailExchange::route(void* base, uint32_t tokens) const {
  return {.base = static_cast<std::byte*>(base),
          .ranks = map_.ranks(),
          .hosts = map_.hosts(),
          .links = static_cast<uint32_t>(peers_.size()),
          .locals = map_.size_of(map_.host_of[world_.rank()]),
          .tokens = tokens,
          .tokens_max = shape_.tokens_max,
          .group_bits = group_bits_of(accelerator_.kind())};
}

Rails RailExchange::rails(const SlotLayout& slot) const {
  const uint32_t capacity = std::min(layout_.ring_bytes / slot.bytes(), kSlotsMax);
  if (capacity == 0)
    throw InvalidArgument("x",
                          fmt::format("rows of at most {} bytes between hosts",
                                      layout_.ring_bytes - (slot.bytes() - slot.row_bytes)),
                          fmt::format("rows of {} bytes", slot.row_bytes));
  return {.hosts = hosts_,
          .layout = layout_,
          .windows = windows_,
          .far = far_.data(),
          .key = far_.target().key,
          .rings = rings_data(),
          .links = links_,
          .link_to = link_to_,
          .tables = {.base = workspace_->as<std::byte>(),
                     .links = static_cast<uint32_t>(peers_.size()),
                     .blocks_max = shape_.blocks_max,
                     .columns = columns_.count()},
          .columns = columns_,
          .queues = network_of(world_)->queues(),
          .fill_queue = queues_->number(kFillQueue),
          .drain_queue = queues_->number(kDrainQueue),
          .slot = slot,
          .capacity = capacity,
          .chunk = chunk_of(shape_, capacity),
          .put_slots = put_slots_of(static_cast<uint32_t>(peers_.size()), capacity),
          .slot_stages_bytes = (slot.bytes() + 127) / 128 * 128,
          .statistics = statistics_};
}

ExpertParallel::Rings RailExchange::rings() const {
  const SlotLayout slot{.row_bytes = shape_.hidden * 2,
                        .scale_words = 0,
                        .choices = shape_.topk,
                        .weights = shape_.topk};
  const Rails of_rows = rails(slot);
  return {.links = static_cast<uint32_t>(peers_.size()),
          .ring_rows = of_rows.capacity,
          .chunk_rows = of_rows.chunk,
          .put_rows = of_rows.put_slots,
          .bytes = uint64_t{peers_.size()} * 2 * layout_.ring_bytes};
}

void RailExchange::add_to(ExpertParallel::Metrics& metrics) const {
  const auto seen = [&](uint32_t which) {
    return std::atomic_ref(statistics_.shown[which]).load(std::memory_order_relaxed);
  };
  const auto seconds = [&](uint32_t which) { return static_cast<double>(seen(which)) * 1e-9; };
  metrics.send_wait_seconds = seconds(RailStatistics::send_ns);
  metrics.forward_wait_seconds = seconds(RailStatistics::forward_ns);
  metrics.add_wait_seconds = seconds(RailStatistics::add_ns);
  metrics.link_sent_bytes_by_peer.resize(map_.ranks());
  metrics.link_arrived_bytes_by_peer.resize(map_.ranks());
  metrics.link_credit_wait_seconds_by_peer.resize(map_.ranks());
  metrics.link_row_wait_seconds_by_peer.resize(map_.ranks());
  for (uint32_t link = 0; link < peers_.size(); ++link) {
    const auto at = [&](RailStatistics::LinkTotal total) {
      return RailStatistics::of_link(link, total);
    };
    const uint32_t peer = peers_[link];
    metrics.link_sent_bytes_by_peer[peer] = seen(at(RailStatistics::sent_bytes));
    metrics.link_arrived_bytes_by_peer[peer] = seen(at(RailStatistics::arrived_bytes));
    metrics.link_credit_wait_seconds_by_peer[peer] = seconds(at(RailStatistics::credits_ns));
    metrics.link_row_wait_seconds_by_peer[peer] = seconds(at(RailStatistics::slots_ns));
  }
}

RailExchange::Bytes RailExchange::bytes_of(const Shape& shape, uint32_t ranks, uint32_t hosts,
                                           uint32_t tokens) {
  std::vector<uint32_t> host_of;
  for (uint32_t rank = 0; rank < ranks; ++rank)
    host_of.push_back(static_cast<uint32_t>(uint64_t{rank} * hosts / ranks));
  const HostMap map(std::move(host_of));
  const WindowLayout layout = layout_of(shape, map, AcceleratorKind::gpu);
  const RailRoute route{.base = nullptr,
                        .ranks = ranks,
                        .hosts = hosts,
                        .links = map.links_max(),
                        .locals = map.locals_max(),
                        .tokens = tokens,
                        .tokens_max = shape.tokens_max,
                        .group_bits = group_bits_of(AcceleratorKind::gpu)};
  return {.near = layout.near_bytes(),
          .far = layout.far_bytes() + layout.rings_bytes(),
          .route = route.bytes()};
}

void RailExchange::retire() {
  const uint32_t retired = 1;
  accelerator_.copy(&workspace_->as<RailWorkspace>()->retired, &retired, sizeof(retired), Stream{});
  await_copies("the end of what was captured");
  queues_.reset();  // Captured kernels post no more.
}

DispatchParams RailExchange::dispatch_params(const throughput::DispatchParams& call,
                                             uint32_t blocks) const {
  const bool counts = call.call.kind != throughput::CallKind::dispatch_again;
  DispatchParams params{.dispatch = call,
                        .rails = rails({.row_bytes = call.row_bytes,
                                        .scale_words = call.call.scales.words(),
                                        .choices = counts ? call.topk : 0,
                                        .weights = counts ? call.topk : 0}),
                        .route = route(call.route, call.tokens),
                        .groups_per_block = 1,
                        .senders = 1,
                        .movers = shape_.movers,
                        .held = 1};
  params.groups_per_block = std::max(1u, (params.route.groups() + blocks - 1) / blocks);
  if (params.movers == 0)
    params.movers = accelerator_.kind() == AcceleratorKind::gpu ? kMoversGpu : kMoversHost;
  params.movers = std::clamp(params.movers, 2u, kMoversMax);
  const auto tail_bytes = [&] {
    return DispatchTail::of(params, kFirstMover + params.movers).bytes();
  };
  const size_t available = accelerator_.capacity().shared_bytes - sizeof(RailShared) - 128;
  params.held = held_by(params.movers, accelerator_.kind());
  if (tail_bytes() > available) params.held = 1;
  while (params.movers > 2 && tail_bytes() > available) --params.movers;
  if (tail_bytes() > available)
    throw InvalidArgument("x", "rows of which two fit into a block's shared memory",
                          fmt::format("rows of {} bytes", call.row_bytes));
  params.senders = senders_of(params.movers, map_.hosts());
  return params;
}

void RailExchange::check_dispatch(const throughput::DispatchParams& call, uint32_t blocks) const {
  (void)dispatch_params(call, blocks);
}

void RailExchange::launch_dispatch(const throughput::DispatchParams& call, uint32_t blocks,
                                   Stream stream) const {
  const DispatchParams params = dispatch_params(call, blocks);
  launch(accelerator_, dispatch_kernel,
         {.blocks = blocks,
          .warps = kFirstMover + params.movers,
          .extra_shared_bytes = DispatchTail::of(params, kFirstMover + params.movers).bytes(),
          .overlap_previous = true},
         stream, params);
}

bool RailExchange::is_wide(const throughput::CombineParams& call) const {
  return shape_.fp32_partials && call.call.format.type() != throughput::ElementType::fp32;
}

SlotLayout RailExchange::partial_slot(const throughput::CombineParams& call) const {
  const uint32_t wide = is_wide(call) ? 2 : 1;
  return {.row_bytes = wide * call.row_bytes, .scale_words = 0, .choices = 0, .weights = call.topk};
}

void RailExchange::check_combine(const throughput::CombineParams& call) const {
  (void)rails(partial_slot(call));
}

void RailExchange::launch_combine(const throughput::CombineParams& call, void* route_base,
                                  uint32_t blocks, Stream stream) const {
  const bool on_gpu = accelerator_.kind() == AcceleratorKind::gpu;
  CombineParams params{.combine = call,
                       .rails = rails(partial_slot(call)),
                       .route = route(route_base, call.tokens),
                       .wide = is_wide(call),
                       .movers = shape_.movers,
                       .part_bytes = std::min(call.row_bytes, kPartBytesMax),
                       .parts = kPartsMax};
  if (params.movers == 0) params.movers = on_gpu ? kAddersGpu : kMoversHost;
  params.movers = std::clamp(params.movers, 2u, kAddersMax);
  const size_t available = accelerator_.capacity().shared_bytes - sizeof(RailShared) - 128;
  while (params.parts > 1 && CombineTail::of(params).bytes() > available) --params.parts;
  launch(accelerator_, combine_kernel,
         {.blocks = blocks,
          .warps = kFirstMover + params.movers,
          .extra_shared_bytes = CombineTail::of(params).bytes(),
          .overlap_previous = true},
         stream, params);
}

}  // namespace tokenyard::internode
