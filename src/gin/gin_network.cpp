#include "gin/gin_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fabric/collective_step.hpp"
#include "fabric/host_map.hpp"
#include "fabric/network_fault.hpp"
#include "gin/endpoint.hpp"
#include "gin/gin_plugin.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::gin {

namespace {

/// Between two looks of the keeper for requests, while there are none.
constexpr std::chrono::microseconds kLook{20};

/// Returns the key of a rank's arena, whose region is number 0; in every world another. It is no
/// secret: the card that sends checks it.
MemoryKey arena_key_of(uint64_t generation, uint32_t rank) {
  uint64_t mixed = (generation * 1021 + rank + 1) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  return (1 + static_cast<uint32_t>(mixed >> 32) % 0xfffffe) << 8;
}

}  // namespace

GinNetwork::GinNetwork(const NetworkPlace& place, const GinOptions& options, TimePoint until)
    : place_(place),
      options_(options),
      accelerator_(place.bootstrap.accelerator()),
      stream_(accelerator_, place.timeout),
      stop_(accelerator_),
      card_record_(accelerator_, stop_) {
  collective_step(place_.bootstrap, "network", until, [&] { open(); });
  const std::vector<Endpoint> endpoints = exchange(until);
  const std::span<AbortWord> watched{gone_->as<AbortWord>(), place_.bootstrap.size()};
  place_.abort_flag.watch(watched);
  try {
    join(endpoints, until);
    fill_tables(endpoints);
    place_.abort_flag.on_refusal([this](const std::string& phase) { check(phase); });
    start();
  } catch (...) {
    place_.abort_flag.on_refusal({});
    place_.abort_flag.unwatch(watched);
    throw;
  }
}

void GinNetwork::open() {
  driver_ = options_.driver ? options_.driver : load_gin_driver();
  driver_->check(accelerator_);
  choose_peers();
  const uint32_t ranks = place_.bootstrap.size();
  const size_t queues = size_t{ranks} * options_.queues_per_peer;
  words_ = place_.arena.allocate(2 * queues * sizeof(uint64_t), stream_.get(), ArenaEnd::upper);
  stage_ = place_.arena.allocate(queues * QueuePair::kSlots * kNetworkInlineMax, stream_.get(),
                                 ArenaEnd::upper);
  accelerator_.fill(words_.data(), 0, words_.bytes(), stream_.get());
  stream_.finish();
  gone_ = shared_zeros<AbortWord>(ranks);
  drains_ = shared_zeros<uint32_t>(1);
}

/// A rail has one rank per host, of the same place there.
void GinNetwork::choose_peers() {
  connected_ = place_.far;
  if (!options_.by_rail) return;
  const uint32_t ranks = place_.bootstrap.size();
  std::vector<uint32_t> absent;
  std::vector<uint32_t> member_of(ranks);
  uint32_t members = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    member_of[rank] = members;
    if (place_.bootstrap.present(rank))
      ++members;
    else
      absent.push_back(rank);
  }
  const HostMap map(place_.host_of, absent);
  stride_ = map.locals_max();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (map.is_absent(rank)) continue;
    const uint32_t host = map.host_of[rank];
    if (map.size_of(host) != stride_ || member_of[rank] % stride_ != map.place_of[rank])
      throw Unsupported("network \"gin:rail\"",
                        fmt::format("hosts need equally many ranks, with consecutive numbers, but "
                                    "rank {} is number {} of the {} on host {}, and the largest "
                                    "host has {}",
                                    rank, map.place_of[rank], map.size_of(host), host, stride_));
    connected_[rank] =
        place_.far[rank] && map.place_of[rank] == map.place_of[place_.bootstrap.rank()];
  }
}

std::vector<Endpoint> GinNetwork::exchange(TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  const uint32_t ranks = bootstrap.size();
  uint32_t first = 0;
  while (!bootstrap.present(first)) ++first;
  Endpoint mine{.version = driver_->version(),
                .queues = options_.queues_per_peer,
                .by_rail = options_.by_rail,
                .arena_key = arena_key_of(bootstrap.membership().generation, bootstrap.rank()),
                .arena_bytes = place_.arena.capacity(),
                .words = words_.offset()};
  collective_step(bootstrap, "network: name the communicator", until, [&] {
    if (bootstrap.rank() != first) return;
    mine.set_id(driver_->make_id());
  });
  const auto everybodys = bootstrap.all_gather(to_bytes(mine), "network: endpoints", until);
  std::vector<Endpoint> endpoints(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    arena_keys_.push_back(0);
    if (!bootstrap.present(rank)) continue;
    const auto endpoint = from_bytes<Endpoint>(everybodys[rank]);
    if (!endpoint || !endpoint->has_words_of(ranks))
      throw InvalidArgument("network", "an endpoint", "other bytes", rank);
    endpoints[rank] = *endpoint;
    // Every rank compares with the first, so all find the same one.
    const auto require_alike = [&](const char* name, const auto& expected, const auto& seen) {
      if (expected == seen) return;
      throw InvalidArgument(name, fmt::format("{}, as on rank {}", expected, first),
                            fmt::format("{}", seen), rank);
    };
    require_alike("NCCL's version", endpoints[first].version, endpoint->version);
    require_alike("queues", endpoints[first].queues, endpoint->queues);
    require_alike("connections by rail", endpoints[first].by_rail, endpoint->by_rail);
    if (reaches(rank) || rank == bootstrap.rank()) arena_keys_.back() = endpoint->arena_key;
  }
  return endpoints;
}

void GinNetwork::join(const std::vector<Endpoint>& endpoints, TimePoint until) {
  Bootstrap& bootstrap = place_.bootstrap;
  // All ranks wait for equally long, and have time left to tell one another of a failure.
  const TimePoint now = accelerator_.now();
  const TimePoint joined_until = now + (until - now) / 4 * 3;
  CommunicatorPlace mine{.id = {},
                         .member = 0,
                         .members = 0,
                         .device = accelerator_.device_index(),
                         .arena = place_.arena.base(),
                         .arena_bytes = place_.arena.capacity(),
                         .queues_per_peer = options_.queues_per_peer,
                         .stride = stride_,
                         .traffic_class = options_.traffic_class};
  for (uint32_t rank = bootstrap.size(); rank-- > 0;) {
    if (!bootstrap.present(rank)) continue;
    ++mine.members;
    if (rank < bootstrap.rank()) ++mine.member;
    mine.id = endpoints[rank].id();
  }
  std::exception_ptr lost;
  collective_step(bootstrap, "network: communicator", until, [&] {
    try {
      communicator_ = driver_->communicator(mine);
      const bool joined = accelerator_.wait_until(joined_until, [&] {
        place_.abort_flag.check("network: communicator");
        return communicator_->join();
      });
      if (!joined)
        throw Unsupported("network \"gin\"",
                          fmt::format("NCCL has not connected rank {} in time", bootstrap.rank()));
    } catch (const PeerLost&) {
      lost = std::current_exception();  // The others find it, too.
    } catch (const PeerTimeout&) {
      lost = std::current_exception();
    }
  });
  if (lost) std::rethrow_exception(lost);
}

void GinNetwork::fill_tables(const std::vector<Endpoint>& endpoints) {
  const uint32_t ranks = place_.bootstrap.size(), own = place_.bootstrap.rank();
  const uint32_t per_peer = options_.queues_per_peer;
  std::vector<CardPeer> peers(ranks);
  uint32_t members = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!place_.bootstrap.present(rank)) continue;
    peers[rank] = {.key = arena_keys_[rank],
                   .member = members++,
                   .bytes = endpoints[rank].arena_bytes,
                   .asked = endpoints[rank].words};
  }
  pairs_memory_ = shared_zeros<QueuePair>(size_t{ranks} * per_peer);
  std::vector<QueueEnd> ends(size_t{ranks} * per_peer);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint32_t number = 0; reaches(rank) && number < per_peer; ++number) {
      const size_t index = size_t{rank} * per_peer + number;
      QueuePair* const pair = pairs_memory_->as<QueuePair>() + index;
      pair->rank = own;
      pair->peer = rank;
      pair->number = number;
      ends[index] = {.pair = pair,
                     .mlx5 = nullptr,
                     .doorbell = nullptr,
                     .rank = own,
                     .peer = rank,
                     .number = number,
                     .posted = 0,
                     .completed = 0};
      pairs_.push_back(pair);
    }
  }
  unreachable_since_.resize(pairs_.size());
  peers_ = stream_.device_copy(peers);
  ends_ = stream_.device_copy(ends);
  key_table_ = stream_.device_copy(arena_keys_);
  pair_table_ = stream_.device_copy(pairs_);
  states_ = stream_.device_copy(std::vector<CardQueueState>(pairs_.size()));
  run_words_ = stream_.device_copy(std::vector<uint64_t>(2));
  const auto queues = static_cast<uint32_t>(pairs_.size());
  params_ = {
      .wait_context = card_record_.wait_context(std::chrono::nanoseconds::max()),
      .idle_ns = 0,
      .timeout_ns = static_cast<uint64_t>(
          std::min<std::chrono::nanoseconds>(options_.timeout, place_.timeout / 2).count()),
      .run = 0,
      .rank = own,
      .queues_per_peer = per_peer,
      .queues = queues,
      .pairs = pair_table_->as<QueuePair*>(),
      .states = states_->as<CardQueueState>(),
      .peers = peers_->as<CardPeer>(),
      .arena = place_.arena.base(),
      .stage = stage_.offset(),
      .seen = words_.offset() + size_t{ranks} * per_peer * sizeof(uint64_t),
      .gone = gone_->as<AbortWord>(),
      .refused = place_.abort_flag.word_to_refuse(),
      .drains = drains_->as<uint32_t>(),
      .ending_run = run_words_->as<uint32_t>(),
      .last_active_ns = run_words_->as<uint64_t>() + 1,
  };
  shape_ = {.blocks = (queues + CardParams::kWarps - 1) / CardParams::kWarps,
            .warps = CardParams::kWarps,
            .cooperative = false,
            .local = true};
}

void GinNetwork::start() {
  card_ = communicator_->start(shape_, params_);
  if (card_) return;
  // A run that ends at once: what a kernel's first launch needs may wait for the whole GPU, on
  // which later a kernel may wait for the card.
  CardParams params = params_;
  params.idle_ns = 1;
  communicator_->run(shape_, params);
  keeper_ = std::jthread([this] { keep_running(); });
}

/// Runs the card whenever a queue has requests. A thread of its own: a launch may come from no
/// callback of CUDA's, and the rank's own thread may wait for a kernel that needs the card.
void GinNetwork::keep_running() {
  CardParams params = params_;
  params.idle_ns = static_cast<uint64_t>(std::max<int64_t>(options_.idle.count(), 1));
  try {
    while (!stops_.load()) {
      if (!has_work()) {
        std::this_thread::sleep_for(kLook);
        continue;
      }
      ++params.run;
      communicator_->run(shape_, params);
    }
  } catch (const std::exception& error) {
    keeper_error_ = error.what();
    keeper_failed_.store(true);
    if (stops_.load()) return;
    // Nobody must wait for a card that is no more.
    end_network(place_.bootstrap, place_.abort_flag, place_.far, keeper_error_);
  }
}

NetworkFault GinNetwork::failed_card(const std::string& phase) const {
  const uint32_t rank = place_.bootstrap.rank();
  return NetworkFault(
      {.rank = rank, .peer = rank, .check = "thread", .phase = phase, .cause = keeper_error_});
}

void GinNetwork::check_works(const std::string& phase) const {
  if (keeper_failed_.load()) throw failed_card(phase);
}

bool GinNetwork::has_work() const {
  const bool drains = accelerator_.read_flag(drains_->as<uint32_t>()) != 0;
  return std::ranges::any_of(pairs_, [&](const QueuePair* pair) {
    if (accelerator_.read_flag(&pair->refused) != 0) return false;
    const uint32_t posted = accelerator_.read_flag(&pair->posted);
    return posted != accelerator_.read_flag(&pair->completed) ||
           (drains && posted != accelerator_.read_flag(&pair->settled));
  });
}

GinNetwork::~GinNetwork() {
  // A rank's requests count after it has left.
  try {
    accelerator_.drain();
    if (!has_drained()) (void)drain(accelerator_.now() + place_.timeout);
  } catch (const std::exception&) {
    // An interrupt ends the wait.
  }
  stop();
  place_.abort_flag.on_refusal({});
  place_.abort_flag.unwatch({gone_->as<AbortWord>(), place_.bootstrap.size()});
  communicator_.reset();
}

void GinNetwork::stop() {
  stops_.store(true);
  stop_.cancel();
  card_.reset();
  if (keeper_.joinable()) keeper_.join();
}

NetworkQueues GinNetwork::queues() const {
  return {.ends = ends_->as<QueueEnd>(),
          .arena_keys = key_table_->as<MemoryKey>(),
          .per_peer = options_.queues_per_peer};
}

std::string GinNetwork::way(uint32_t rank) const {
  return reaches(rank) ? "gin, " + communicator_->way() + (options_.by_rail ? ", by rail" : "")
                       : "";
}

std::string GinNetwork::why_not(uint32_t rank) const {
  return place_.far[rank] && !reaches(rank)
             ? "\"gin:rail\" connects ranks of one place on their hosts"
             : "";
}

MemoryKey GinNetwork::register_memory(std::byte*, size_t bytes) {
  throw InvalidArgument("register_memory",
                        "memory of the arena, the only one that is registered over gin",
                        fmt::format("{} bytes elsewhere", bytes));
}

void GinNetwork::deregister(MemoryKey key) {
  throw InvalidArgument("key", "one that register_memory returned", fmt::format("{:#x}", key));
}

bool GinNetwork::is_gone(uint32_t rank) const {
  const AbortWord word = accelerator_.read_flag(gone_->as<AbortWord>() + rank);
  return word != kNoAbort && word != kCancelled;
}

/// Returns whether a queue has failed because its peer does not answer, and the job tells that the
/// peer is gone. It may do so later than NCCL: so waits for it, until a timeout has passed since
/// the failure was first seen.
bool GinNetwork::is_told_gone(size_t index) {
  const QueuePair& pair = *pairs_[index];
  const auto refused = static_cast<NetworkCheck>(accelerator_.read_flag(&pair.refused));
  if (refused != NetworkCheck::connection) return false;
  std::optional<TimePoint>& since = unreachable_since_[index];
  if (!since) since = accelerator_.now();
  return accelerator_.wait_until(*since + place_.timeout, [&] { return is_gone(pair.peer); });
}

void GinNetwork::check(const std::string& phase) {
  check_works(phase);
  std::vector<QueuePair*> faulty = pairs_;
  for (size_t index = 0; index < faulty.size(); ++index)
    if (is_retired(pairs_[index]->number) || is_told_gone(index)) faulty[index] = nullptr;
  try {
    check_refusals(accelerator_, faulty, phase);
  } catch (const NetworkFault& fault) {
    if (fault.facts.check != "connection") throw;
    NetworkFault::Facts facts = fault.facts;
    facts.cause = communicator_->error();
    throw NetworkFault(facts);
  }
}

bool GinNetwork::is_refused(uint32_t number) {
  return std::ranges::any_of(pairs_, [&](const QueuePair* pair) {
    return pair->number == number && accelerator_.read_flag(&pair->refused) != 0;
  });
}

void GinNetwork::forget_refusals(const std::vector<bool>& retired) {
  place_.abort_flag.forget_refusal([&] {
    return std::ranges::any_of(pairs_, [&](const QueuePair* pair) {
      return !retired[pair->number] && accelerator_.read_flag(&pair->refused) != 0;
    });
  });
}

bool GinNetwork::drain(TimePoint until) {
  accelerator_.write_flag(drains_->as<uint32_t>(), 1);
  const bool settled = accelerator_.wait_until(until, [&] {
    return keeper_failed_.load() ||
           std::ranges::all_of(pairs_, [&](const QueuePair* pair) { return is_settled(*pair); });
  });
  accelerator_.write_flag(drains_->as<uint32_t>(), 0);
  return settled && !keeper_failed_.load();
}

bool GinNetwork::is_settled(const QueuePair& pair) const {
  return accelerator_.read_flag(&pair.settled) == accelerator_.read_flag(&pair.posted) ||
         accelerator_.read_flag(&pair.refused) != 0;
}

template <class T>
std::unique_ptr<DeviceMemory> GinNetwork::shared_zeros(size_t count) {
  return std::make_unique<DeviceMemory>(accelerator_, count * sizeof(T),
                                        DeviceMemory::Kind::shared);
}

MakeNetwork gin_networks(const GinOptions& options) {
  return [options](const NetworkPlace& place, TimePoint until) {
    return std::make_shared<GinNetwork>(place, options, until);
  };
}

}  // namespace tokenyard::gin
