#include "ibgda/ibgda_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "device/mlx5_queue.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/network/mlx5_check.hpp"
#include "fabric/network_fault.hpp"
#include "ibgda/driver_plugin.hpp"
#include "ibgda/endpoint.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::ibgda {

namespace {

constexpr uint32_t kArena = 0;                        ///< number of its region
constexpr uint32_t kOldValues = kNetworkRegions - 1;  ///< of what fetch-adds return

}  // namespace

IbgdaNetwork::IbgdaNetwork(const NetworkPlace& place, const IbgdaOptions& options, TimePoint until)
    : place_(place),
      options_(options),
      log_(place.bootstrap.rank()),
      accelerator_(place.bootstrap.accelerator()),
      stream_(accelerator_, place.timeout) {
  std::span<AbortWord> watched;
  try {
    collective_step(place_.bootstrap, "network", until, [&] { open(); });
    const std::vector<Endpoint> endpoints = exchange(until);
    watched = {gone_->as<AbortWord>(), place_.bootstrap.size()};
    place_.abort_flag.watch(watched);
    place_.abort_flag.on_refusal([this](const std::string& phase) { check(phase); });
    // The end of this step is a barrier: a request to a queue pair that is not ready is lost.
    collective_step(place_.bootstrap, "network: connections", until, [&] { connect(endpoints); });
    collective_step(place_.bootstrap, "network: memory", until, [&] { fill_tables(); });
  } catch (...) {
    if (!watched.empty()) {
      place_.abort_flag.on_refusal({});
      place_.abort_flag.unwatch(watched);
    }
    close_all();
    throw;
  }
}

void IbgdaNetwork::open() {
  const uint32_t ranks = place_.bootstrap.size();
  if (accelerator_.kind() == AcceleratorKind::gpu && !options_.gpu) {
    throw Unsupported("network \"ibgda\"",
                      "this build cannot map a card's registers for kernels of a GPU");
  }
  driver_ = options_.driver ? options_.driver : load_rdma_driver();
  DeviceRequest request = options_.request;
  if (options_.gpu) request.near = options_.gpu->pci();
  DeviceChoice choice = choose_device(driver_->devices(), request);
  auto device = driver_->open(choice.device.name);
  card_ = std::make_unique<Mlx5Card>(
      std::move(device), std::move(choice), options_,
      std::min<std::chrono::nanoseconds>(options_.timeout, place_.timeout / 2));
  std::byte* const registers = card_->registers().blue_flame;
  registers_ =
      options_.gpu ? options_.gpu->map_registers(registers, sizeof(mlx5::BlueFlame)) : registers;
  const auto shared = [&](size_t bytes) {
    return std::make_unique<DeviceMemory>(accelerator_, bytes, DeviceMemory::Kind::shared);
  };
  const size_t queues = size_t{ranks} * options_.queues_per_peer;
  gone_ = shared(ranks * sizeof(AbortWord));
  old_values_ = shared(queues * sizeof(uint64_t));
  bases_ = stream_.device_copy(std::vector<std::byte*>(kNetworkRegions));
  open_region(kOldValues, old_values_->as<std::byte>(), queues * sizeof(uint64_t));
  open_arena();
  queues_.resize(queues);
  for (uint32_t peer = 0; peer < ranks; ++peer)
    for (uint32_t number = 0; reaches(peer) && number < options_.queues_per_peer; ++number)
      make_queue(queues_[peer * options_.queues_per_peer + number], peer, number);
}

/// Memory of a GPU needs a dma-buf, which its driver or the card's may refuse: rows lie in pinned
/// memory then.
void IbgdaNetwork::open_arena() {
  if (options_.gpu) why_pinned_ = options_.gpu->why_not_exported();
  if (!reaches_arena()) return;
  try {
    open_region(kArena, place_.arena.base(), place_.arena.capacity());
  } catch (const OsError& error) {
    if (!options_.gpu) throw;
    why_pinned_ = error.what();
  }
}

void IbgdaNetwork::make_queue(Queue& queue, uint32_t peer, uint32_t number) {
  const QueueLayout layout(options_.slots);
  const auto shared = [&](size_t bytes) {
    return std::make_unique<DeviceMemory>(accelerator_, bytes, DeviceMemory::Kind::shared);
  };
  // A card maps memory page by page.
  queue.memory = shared(layout.bytes + QueueLayout::kPage);
  const auto begin = reinterpret_cast<uintptr_t>(queue.memory->as<std::byte>());
  auto* const memory = queue.memory->as<std::byte>() +
                       (QueueLayout::kPage - begin % QueueLayout::kPage) % QueueLayout::kPage;
  auto* const record = reinterpret_cast<mlx5::DoorbellRecord*>(memory + layout.pair_record);
  auto* const completion = reinterpret_cast<mlx5::Completion*>(memory + layout.completions);
  for (uint32_t entry = 0; entry < options_.slots; ++entry)
    completion[entry].index_opcode = mlx5::index_opcode_of(0, mlx5::Completed::invalid, 0);
  queue.shared_pair = shared(sizeof(QueuePair));
  queue.pair().rank = place_.bootstrap.rank();
  queue.pair().peer = peer;
  queue.pair().number = number;
  queue.card = card_->make_queue(memory, options_.slots);
  queue.view = {.blocks = reinterpret_cast<mlx5::Block*>(memory + layout.blocks),
                .record = &record->send,
                .blue_flame = reinterpret_cast<mlx5::BlueFlame*>(registers_),
                .completion = completion,
                .slots = options_.slots,
                .number = queue.card.number};
}

std::vector<Endpoint> IbgdaNetwork::exchange(TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  const DeviceChoice& choice = card_->choice();
  Endpoint mine{.link = link_text(choice.gid.kind),
                .queues = options_.queues_per_peer,
                .arena_key = regions_[kArena].key,
                .lid = choice.port.lid,
                .mtu = card_->limits().mtu,
                .log_reads_asked = card_->limits().log_reads_asked,
                .log_reads_served = card_->limits().log_reads_served,
                .pairs = {}};
  mine.set_gid(choice.gid.gid);
  for (const Queue& queue : queues_) mine.pairs.push_back(queue.card.number);
  const auto everybodys = bootstrap.all_gather(to_bytes(mine), "network: endpoints", until);
  std::vector<Endpoint> endpoints(everybodys.size());
  std::optional<uint32_t> first;
  for (uint32_t rank = 0; rank < endpoints.size(); ++rank) {
    if (!bootstrap.present(rank)) {
      arena_keys_.push_back(0);
      continue;
    }
    auto endpoint = from_bytes<Endpoint>(everybodys[rank]);
    if (!endpoint) throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    endpoints[rank] = *std::move(endpoint);
    // Every rank compares with the first, so all find the same one.
    if (!first) first = rank;
    const auto require_alike = [&](const char* name, const auto& expected, const auto& seen) {
      if (expected == seen) return;
      throw InvalidArgument(name, fmt::format("{}, as on rank {}", expected, *first),
                            fmt::format("{}", seen), rank);
    };
    require_alike("transport", endpoints[*first].link, endpoints[rank].link);
    require_alike("queues", endpoints[*first].queues, endpoints[rank].queues);
    require_alike("queue pairs", endpoints.size() * endpoints[rank].queues,
                  endpoints[rank].pairs.size());
    const bool known = reaches(rank) || rank == bootstrap.rank();
    arena_keys_.push_back(known ? endpoints[rank].arena_key : 0);
  }
  return endpoints;
}

void IbgdaNetwork::connect(const std::vector<Endpoint>& endpoints) {
  const Gid own = card_->choice().gid.gid;
  for (uint32_t peer = 0; peer < endpoints.size(); ++peer) {
    if (!reaches(peer)) continue;
    const Endpoint& end = endpoints[peer];
    const Gid gid = end.gid();
    const bool same_subnet = std::equal(own.begin(), own.begin() + 8, gid.begin());
    PeerPlan plan{.queue_pair = 0,
                  .lid = end.lid,
                  .is_global = !same_subnet || end.lid == 0,
                  .gid = gid,
                  .route = {}};
    if (card_->path().ethernet) plan.route = card_->route(gid);
    for (uint32_t number = 0; number < options_.queues_per_peer; ++number) {
      const size_t theirs = size_t{place_.bootstrap.rank()} * options_.queues_per_peer + number;
      plan.queue_pair = end.pairs[theirs];
      const Queue& queue = queues_[peer * options_.queues_per_peer + number];
      card_->connect(queue.card, plan,
                     {.mtu = end.mtu,
                      .log_reads_asked = end.log_reads_asked,
                      .log_reads_served = end.log_reads_served});
    }
  }
}

void IbgdaNetwork::publish_queue(Queue& queue, uint32_t index) {
  // A stamp is never that of the next entry for its block.
  std::vector<uint32_t> stamps(options_.slots);
  for (uint32_t entry = 0; entry < options_.slots; ++entry) stamps[entry] = entry;
  queue.stamps = stream_.device_copy(stamps);
  const std::vector<Mlx5SendQueue> end{{
      .blocks = queue.view.blocks,
      .record = const_cast<uint32_t*>(queue.view.record),
      .blue_flame = queue.view.blue_flame,
      .completion = queue.view.completion,
      .stamps = queue.stamps->as<uint32_t>(),
      .bases = bases_->as<std::byte*>(),
      .gone = gone_->as<AbortWord>(),
      .refused = place_.abort_flag.word_to_refuse(),
      .old_values = index * sizeof(uint64_t),
      .old_values_key = regions_[kOldValues].key,
      .slots = options_.slots,
      .number = queue.card.number,
      .reserved = 0,
      .completed = 0,
      .ended = 0,
      .ringers = 0,
      .rung = 0,
      .half = 0,
  }};
  queue.kernels_end = stream_.device_copy(end);
}

void IbgdaNetwork::fill_tables() {
  std::vector<QueueEnd> ends(queues_.size());
  for (uint32_t index = 0; index < queues_.size(); ++index) {
    Queue& queue = queues_[index];
    if (!queue.memory) continue;
    publish_queue(queue, index);
    ends[index] = {.pair = &queue.pair(),
                   .mlx5 = queue.kernels_end->as<Mlx5SendQueue>(),
                   .doorbell = nullptr,
                   .rank = queue.pair().rank,
                   .peer = queue.pair().peer,
                   .number = queue.pair().number,
                   .posted = 0,
                   .completed = 0};
  }
  ends_ = stream_.device_copy(ends);
  key_table_ = stream_.device_copy(arena_keys_);
}

IbgdaNetwork::~IbgdaNetwork() {
  // A rank's requests count after it has left.
  try {
    accelerator_.drain();
    if (!has_drained()) (void)drain(accelerator_.now() + place_.timeout);
  } catch (const std::exception&) {
    // An interrupt ends the wait, or a card that does not obey.
  }
  place_.abort_flag.on_refusal({});
  place_.abort_flag.unwatch({gone_->as<AbortWord>(), place_.bootstrap.size()});
  // Peers whose requests still come find no queue pair, and take this rank for silent. A key that
  // ended first would be a fault of theirs.
  close_all();
}

void IbgdaNetwork::close_all() {
  const auto warn = [&](const std::string& what, const std::string& why) {
    log_.write(LogLevel::warning, place_.bootstrap.generation(),
               fmt::format("network: {} keeps {} until it is closed: {}",
                           card_->choice().device.name, what, why));
  };
  for (Queue& queue : queues_) {
    const std::string why = queue.card.close();
    if (why.empty()) continue;
    warn(fmt::format("a queue to rank {}", queue.pair().peer), why);
    kept_.push_back(std::move(queue.memory));
  }
  queues_.clear();
  for (uint32_t number = 0; number < regions_.size(); ++number) {
    try {
      if (regions_[number].key != 0) regions_[number].close();
    } catch (const std::exception& error) {
      warn(fmt::format("region {}", number), error.what());
    }
  }
  unmap_registers();
}

void IbgdaNetwork::unmap_registers() {
  if (!options_.gpu || std::exchange(registers_, nullptr) == nullptr) return;
  try {
    options_.gpu->unmap_registers(card_->registers().blue_flame);
  } catch (const std::exception&) {
    // The process's end unmaps them.
  }
}

NetworkQueues IbgdaNetwork::queues() const {
  return {.ends = ends_->as<QueueEnd>(),
          .arena_keys = key_table_->as<MemoryKey>(),
          .per_peer = options_.queues_per_peer};
}

std::string IbgdaNetwork::way(uint32_t rank) const {
  if (!reaches(rank)) return {};
  return "ibgda, " + text_of(card_->choice()) +
         (reaches_arena() ? "" : ", pinned rings (" + why_pinned_ + ")");
}

bool IbgdaNetwork::reaches_arena() const {
  return why_pinned_.empty();
}

MemoryKey IbgdaNetwork::open_region(uint32_t number, std::byte* base, size_t bytes) {
  std::optional<DmaBuf> dma_buf;
  if (options_.gpu) dma_buf = options_.gpu->dma_buf(base, bytes);
  regions_[number] = card_->make_region(number, base, bytes, dma_buf);
  accelerator_.copy(bases_->as<std::byte*>() + number, &base, sizeof base, stream_.get());
  stream_.finish();
  return regions_[number].key;
}

MemoryKey IbgdaNetwork::register_memory(std::byte* base, size_t bytes) {
  if (base == nullptr || bytes == 0)
    throw InvalidArgument("bytes", "memory of at least 1 byte", fmt::format("{}", bytes));
  // The first region is the arena's, also where that is not registered.
  auto* const free = std::find_if(regions_.begin() + 1, regions_.end(),
                                  [](const CardRegion& region) { return region.key == 0; });
  if (free == regions_.end())
    throw InvalidArgument("register_memory",
                          fmt::format("at most {} regions; deregister one", kNetworkRegions),
                          fmt::format("{}", kNetworkRegions + 1));
  return open_region(static_cast<uint32_t>(free - regions_.begin()), base, bytes);
}

void IbgdaNetwork::deregister(MemoryKey key) {
  const uint32_t number = region_of_key(key);
  if (key == 0 || number == kArena || number >= kOldValues || regions_[number].key != key)
    throw InvalidArgument("key", "one that register_memory returned", fmt::format("{:#x}", key));
  // Once its key has ended, the card touches the memory no more.
  regions_[number].close();
}

bool IbgdaNetwork::is_gone(uint32_t rank) const {
  const AbortWord word = accelerator_.read_flag(gone_->as<AbortWord>() + rank);
  return word != kNoAbort && word != kCancelled;
}

/// Ends the queues to ranks that are gone, which the card would otherwise try for long.
void IbgdaNetwork::end_gone() {
  for (Queue& queue : queues_) {
    if (!queue.memory || queue.has_ended || !is_gone(queue.pair().peer)) continue;
    queue.has_ended = true;
    card_->end(queue.card);
  }
}

void IbgdaNetwork::check(const std::string& phase) {
  end_gone();
  std::vector<QueuePair*> pairs;
  for (const Queue& queue : queues_) {
    if (!queue.memory || is_retired(queue.pair().number)) continue;
    pairs.push_back(&queue.pair());
    check_mlx5(accelerator_, queue.pair(), queue.view, gone_->as<AbortWord>() + queue.pair().peer,
               phase);
  }
  check_refusals(accelerator_, pairs, phase);
}

bool IbgdaNetwork::is_refused(uint32_t number) {
  return std::ranges::any_of(queues_, [&](const Queue& queue) {
    return queue.memory && queue.pair().number == number &&
           (accelerator_.read_flag(&queue.pair().refused) != 0 ||
            has_failed_request(accelerator_, queue.view));
  });
}

void IbgdaNetwork::forget_refusals(const std::vector<bool>& retired) {
  place_.abort_flag.forget_refusal([&] {
    return std::ranges::any_of(queues_, [&](const Queue& queue) {
      return queue.memory && !retired[queue.pair().number] &&
             accelerator_.read_flag(&queue.pair().refused) != 0;
    });
  });
}

bool IbgdaNetwork::drain(TimePoint until) {
  return accelerator_.wait_until(until, [&] {
    end_gone();
    return std::ranges::all_of(
        queues_, [&](const Queue& queue) { return !queue.memory || is_settled(queue); });
  });
}

/// A completion says that the peer has taken the request.
bool IbgdaNetwork::is_settled(const Queue& queue) const {
  const uint32_t word = accelerator_.read_flag(&queue.view.completion->index_opcode);
  const auto posted =
      static_cast<uint16_t>(mlx5::big_endian(accelerator_.read_flag(queue.view.record)));
  switch (mlx5::completed_of(word)) {
    case mlx5::Completed::request:
      return static_cast<uint16_t>(mlx5::index_of(word) + 1) == posted;
    case mlx5::Completed::request_error:
      return true;
    case mlx5::Completed::invalid:
      break;
  }
  return posted == 0;
}

MakeNetwork ibgda_networks(const IbgdaOptions& options) {
  return [options](const NetworkPlace& place, TimePoint until) {
    return std::make_shared<IbgdaNetwork>(place, options, until);
  };
}

}  // namespace tokenyard::ibgda
