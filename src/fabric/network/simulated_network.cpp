#include "fabric/network/simulated_network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "device/owned_event.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/mlx5_check.hpp"
#include "fabric/network_fault.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

const std::array<std::string, 1> kGatePhases = {kGatePhase};

/// Returns a tag that is not 0, for the high 24 bits of a key.
uint32_t draw_tag(uint64_t seed, uint64_t number) {
  uint64_t mixed = seed + (number + 1) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return 1 + static_cast<uint32_t>(mixed >> 32) % 0xfffffe;
}

constexpr uint32_t kFirstMlx5Number = 0x5a;  ///< of a queue pair, in its card

uint64_t femtoseconds_per_byte(double gigabytes_per_s) {
  return gigabytes_per_s <= 0 ? 0 : static_cast<uint64_t>(1e6 / gigabytes_per_s);
}

}  // namespace

template <class T>
T* SimulatedNetwork::array(size_t count, const std::vector<T>& values) {
  Accelerator& owner = accelerator_;
  auto* const memory =
      static_cast<T*>(owner.allocate_shared(std::max<size_t>(count, 1) * sizeof(T)));
  kept_.emplace_back(memory, [&owner](void* gone) { owner.free_shared(gone); });
  if (!values.empty()) owner.copy(memory, values.data(), values.size() * sizeof(T), stream_.get());
  return memory;
}

template <class T>
T* SimulatedNetwork::device_array(size_t count, const std::vector<T>& values) {
  Accelerator& owner = accelerator_;
  auto* const memory = static_cast<T*>(owner.allocate(std::max<size_t>(count, 1) * sizeof(T)));
  kept_.emplace_back(memory, [&owner](void* gone) { owner.free(gone); });
  if (!values.empty()) owner.copy(memory, values.data(), values.size() * sizeof(T), stream_.get());
  return memory;
}

SimulatedNetwork::SimulatedNetwork(const Place& place, const SimulatedCard& card, TimePoint until)
    : place_(place),
      accelerator_(place.bootstrap.accelerator()),
      queues_per_peer_(card.queues_per_peer),
      stop_(accelerator_),
      never_(accelerator_),
      card_record_(accelerator_, stop_),
      stream_(accelerator_, place.timeout),
      // Keys of the world before are refused, so a rebuilt world draws others.
      seed_((card.options.seed * 1021 + place.bootstrap.membership().generation) * 1021 +
            place.bootstrap.rank()) {
  const uint32_t ranks = place_.bootstrap.size();
  MemoryKey arena_key = 0;
  collective_step(place_.bootstrap, "network", until, [&] {
    accelerator_.prepare(gate_kernel.entry);
    // The table, then a word per queue for what fetch-adds return.
    const size_t bytes = RegionTable::bytes(ranks) + ranks * queues_per_peer_ * sizeof(uint64_t);
    table_ = place_.arena.allocate(bytes, stream_.get(), ArenaEnd::upper);
    accelerator_.fill(table_.data(), 0, bytes, stream_.get());
    bases_ = device_array<std::byte*>(kNetworkRegions, {});
    gone_ = array<AbortWord>(ranks);
    stream_.finish();
    arena_key = open(place_.arena.base(), place_.arena.capacity());
  });
  place_.abort_flag.watch(gone());
  place_.abort_flag.on_refusal([this](const std::string& phase) { check(phase); });
  try {
    struct Mine {
      uint64_t table;
      uint64_t arena_key;
    };
    const auto everybodys =
        gather(place_.bootstrap, Mine{table_.offset(), arena_key}, "networks", until);
    std::vector<uint64_t> tables;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      tables.push_back(everybodys[rank].table);
      const bool known = reaches(rank) || rank == place_.bootstrap.rank();
      arena_keys_.push_back(known ? static_cast<MemoryKey>(everybodys[rank].arena_key) : 0);
    }
    start(card, tables);
  } catch (...) {
    place_.abort_flag.on_refusal({});
    place_.abort_flag.unwatch(gone());
    throw;
  }
}

void SimulatedNetwork::start(const SimulatedCard& card, const std::vector<uint64_t>& tables) {
  const uint32_t ranks = place_.bootstrap.size();
  std::vector<QueueEnd> ends;
  std::vector<RegionTable> peer_tables;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint32_t number = 0; number < queues_per_peer_; ++number) {
      ends.push_back({});
      if (!reaches(rank)) continue;
      QueuePair* const pair = array<QueuePair>(1);
      pair->rank = place_.bootstrap.rank();
      pair->peer = rank;
      pair->number = number;
      pair->posted = pair->completed = pair->settled = card.options.first;
      ends.back() = {.pair = pair,
                     .mlx5 = nullptr,
                     .doorbell = nullptr,
                     .rank = pair->rank,
                     .peer = rank,
                     .number = number,
                     .posted = pair->posted,
                     .completed = pair->completed};
      if (card.options.mlx5_slots != 0) ends.back().mlx5 = make_mlx5(*pair, card.options);
      pairs_.push_back(pair);
      peer_tables.push_back({place_.far_arenas[rank] + tables[rank], ranks});
    }
  }
  ends_ = device_array(ends.size(), ends);
  key_table_ = device_array(arena_keys_.size(), arena_keys_);
  const auto queues = static_cast<uint32_t>(pairs_.size());
  const NicParams params{
      .wait_context = card_record_.wait_context(std::chrono::nanoseconds::max()),
      .seed = seed_,
      .nap_ns_max = card.options.nap_ns_max,
      .stall_ns_max = card.options.stall_ns_max,
      .latency_ns = static_cast<uint64_t>(card.options.latency_us * 1e3),
      .fs_per_byte = femtoseconds_per_byte(card.options.gigabytes_per_s),
      .link_free_ns = array<uint64_t>(1),
      .rank = place_.bootstrap.rank(),
      .dies_after = card.options.dies_after,
      .queues = queues,
      .pairs = array(pairs_.size(), pairs_),
      .mlx5_pairs = mlx5_.empty() ? nullptr : array(mlx5_.size(), mlx5_),
      .peer_tables = array(peer_tables.size(), peer_tables),
      .table = {table_.data(), ranks},
      .gone = gone_,
      .refused = place_.abort_flag.word_to_refuse(),
      .entries = array<NicEntry>(pairs_.size() * QueuePair::kSlots),
      .stages = array<std::byte>(pairs_.size() * NicParams::kStageBytes),
  };
  // The card starts only after its tables have been copied.
  stream_.finish();
  card_ = card.run(nic_kernel.entry,
                   LaunchShape{.blocks = (queues + NicParams::kWarps - 1) / NicParams::kWarps,
                               .warps = NicParams::kWarps},
                   &params);
}

Mlx5SendQueue* SimulatedNetwork::make_mlx5(const QueuePair& pair, const CardOptions& options) {
  const uint32_t slots = options.mlx5_slots;
  const auto number = static_cast<uint32_t>(mlx5_.size());
  auto* const record = array<mlx5::DoorbellRecord>(1);
  auto* const completion = array<mlx5::Completion>(1);
  record->send = mlx5::big_endian(options.first & 0xffff);
  completion->index_opcode = mlx5::index_opcode_of(0, mlx5::Completed::invalid, 0);
  mlx5_.push_back({.blocks = array<mlx5::Block>(slots),
                   .record = &record->send,
                   .blue_flame = array<mlx5::BlueFlame>(1),
                   .completion = completion,
                   .slots = slots,
                   .number = kFirstMlx5Number + number});
  // A stamp is never that of the next entry for its block.
  std::vector<uint32_t> stamps(slots);
  for (uint32_t entry = 0; entry < slots; ++entry)
    stamps[(options.first + entry) % slots] = options.first + entry;
  const std::vector<Mlx5SendQueue> queue{{
      .blocks = mlx5_.back().blocks,
      .record = &record->send,
      .blue_flame = mlx5_.back().blue_flame,
      .completion = completion,
      .stamps = device_array(slots, stamps),
      .bases = bases_,
      .gone = gone_,
      .refused = place_.abort_flag.word_to_refuse(),
      .old_values =
          table_.offset() + RegionTable::bytes(place_.bootstrap.size()) + number * sizeof(uint64_t),
      .old_values_key = arena_keys_[pair.rank],
      .slots = slots,
      .number = mlx5_.back().number,
      .reserved = options.first,
      .completed = options.first,
      .ended = 0,
      .ringers = 0,
      .rung = options.first,
      .half = 0,
  }};
  Mlx5SendQueue* const made = device_array(1, queue);
  stream_.finish();  // The vectors end here.
  return made;
}

SimulatedNetwork::~SimulatedNetwork() {
  // A rank's requests count after it has left: its kernels end, then the card works off all that
  // they have posted. A card that was stopped first might not have seen the last posts.
  try {
    accelerator_.drain();
    if (!has_drained()) (void)drain(accelerator_.now() + place_.timeout);
  } catch (const std::exception&) {
    // An interrupt ends the wait; the card then ends with the requests that it has seen.
  }
  stop_.cancel();
  card_.reset();
  for (uint32_t number = 1; number < keys_.size(); ++number) {
    try {
      if (keys_[number] != 0) close(number, kClosedKey);
    } catch (const Error&) {
      // A rank that does not answer is inside. Its death is told elsewhere.
    }
  }
  place_.abort_flag.on_refusal({});
  place_.abort_flag.unwatch(gone());
}

NetworkQueues SimulatedNetwork::queues() const {
  return {.ends = ends_, .arena_keys = key_table_, .per_peer = queues_per_peer_};
}

MemoryKey SimulatedNetwork::register_memory(std::byte* base, size_t bytes) {
  if (base == nullptr || bytes == 0)
    throw InvalidArgument("bytes", "memory of at least 1 byte", fmt::format("{}", bytes));
  return open(base, bytes);
}

MemoryKey SimulatedNetwork::open(std::byte* base, size_t bytes) {
  const auto* const free = std::ranges::find(keys_, MemoryKey{0});
  if (free == keys_.end())
    throw InvalidArgument("register_memory",
                          fmt::format("at most {} regions; deregister one", kNetworkRegions),
                          fmt::format("{}", kNetworkRegions + 1));
  const auto number = static_cast<uint32_t>(free - keys_.begin());
  const MemoryKey key = draw_tag(seed_, tags_++) << 8 | number;
  const NetworkRegion region{base, bytes};
  accelerator_.copy(table_.data() + number * sizeof region, &region, sizeof region, stream_.get());
  accelerator_.copy(bases_ + number, &base, sizeof base, stream_.get());
  change_gates(number, key);
  return keys_[number] = key;
}

void SimulatedNetwork::deregister(MemoryKey key) {
  const uint32_t number = region_of_key(key);
  const MemoryKey registered = number < keys_.size() ? keys_[number] : 0;
  if (key == 0 || registered != key || key == arena_keys_[place_.bootstrap.rank()])
    throw InvalidArgument("key", "one that register_memory returned", fmt::format("{:#x}", key));
  close(number, 0);
}

void SimulatedNetwork::close(uint32_t number, MemoryKey key) {
  change_gates(number, key);
  keys_[number] = 0;
}

void SimulatedNetwork::change_gates(uint32_t number, MemoryKey key) {
  if (!gate_record_) gate_record_ = std::make_unique<ErrorRecord>(accelerator_, never_);
  const GateParams params{.wait_context = gate_record_->wait_context(place_.timeout),
                          .table = {table_.data(), place_.bootstrap.size()},
                          .number = number,
                          .key = key,
                          .gone = gone_};
  launch(accelerator_, gate_kernel, {.blocks = 1, .warps = 1, .cooperative = false, .local = true},
         stream_.get(), params);
  stream_.finish();
  try {
    gate_record_->check(kGatePhases);
  } catch (...) {
    gate_record_.reset();  // A record keeps its first failure.
    throw;
  }
}

void SimulatedNetwork::check(const std::string& phase) {
  for (size_t number = 0; number < mlx5_.size(); ++number) {
    const QueuePair& pair = *pairs_[number];
    if (!is_retired(pair.number))
      check_mlx5(accelerator_, pair, mlx5_[number], &gone_[pair.peer], phase);
  }
  check_refusals(accelerator_, in_use(pairs_), phase);
}

bool SimulatedNetwork::is_refused(uint32_t number) {
  for (size_t index = 0; index < pairs_.size(); ++index) {
    if (pairs_[index]->number != number) continue;
    if (accelerator_.read_flag(&pairs_[index]->refused) != 0) return true;
    if (!mlx5_.empty() && has_failed_request(accelerator_, mlx5_[index])) return true;
  }
  return false;
}

void SimulatedNetwork::forget_refusals(const std::vector<bool>& retired) {
  place_.abort_flag.forget_refusal([&] {
    return std::ranges::any_of(pairs_, [&](const QueuePair* pair) {
      return !retired[pair->number] && accelerator_.read_flag(&pair->refused) != 0;
    });
  });
}

bool SimulatedNetwork::drain(TimePoint until) {
  return accelerator_.wait_until(until, [&] {
    for (size_t number = 0; number < pairs_.size(); ++number)
      if (!is_settled(number)) return false;
    return true;
  });
}

bool SimulatedNetwork::is_settled(size_t number) const {
  const QueuePair& pair = *pairs_[number];
  const uint32_t settled = accelerator_.read_flag(&pair.settled);
  if (!mlx5_.empty()) {
    const uint32_t record = mlx5::big_endian(accelerator_.read_flag(mlx5_[number].record));
    return (settled & 0xffff) == record;
  }
  return settled == accelerator_.read_flag(&pair.posted) ||
         accelerator_.read_flag(&pair.refused) != 0;
}

}  // namespace tokenyard
