#include "bench/across_hosts/one_rank.hpp"

#include <chrono>
#include <cstring>
#include <thread>

#include "bench/harness/each_rank.hpp"
#include "bench/harness/wire_network.hpp"
#include "fabric/host/in_process_fabric.hpp"
#include "fabric/world_access.hpp"
#include "simt/host_accelerator.hpp"
#include "world/in_process.hpp"

namespace tokenyard::bench {

namespace {

/// The rank whose arena this thread makes.
thread_local uint32_t arena_of_rank = 0;

/// Hosts of equal size in one process, whose arenas a function makes.
class OneRankFabric final : public Fabric {
 public:
  using Allocate = std::function<std::shared_ptr<std::byte>(uint32_t rank, size_t bytes)>;

  OneRankFabric(std::vector<uint32_t> host_of, Allocate allocate)
      : inner_(std::move(host_of), [allocate = std::move(allocate)](size_t bytes) {
          return allocate(arena_of_rank, bytes);
        }) {}
  std::string name() const override { return inner_.name(); }
  std::vector<uint32_t> hosts(Bootstrap& bootstrap, TimePoint until) override {
    return inner_.hosts(bootstrap, until);
  }
  Ground prepare(Bootstrap& bootstrap, const FabricRequest& request, TimePoint until) override {
    arena_of_rank = bootstrap.rank();
    return inner_.prepare(bootstrap, request, until);
  }

 private:
  InProcessFabric inner_;
};

}  // namespace

void RankAccelerator::launch(const KernelEntry& kernel, const LaunchShape& shape, Stream stream,
                             const void* params) {
  const bool is_exchange =
      &kernel == &internode::dispatch_kernel.entry || &kernel == &internode::combine_kernel.entry;
  if (is_exchange && on_launch) return on_launch({&kernel, shape, stream, params});
  inner_.launch(kernel, shape, stream, params);
}

OneRankWorld::OneRankWorld(const Scene& scene, const std::string& device, bool pinned,
                           size_t arena_bytes)
    : device_world_(worlds_on(1, device, {.arena_bytes = size_t{64} << 20})),
      accelerator_(accelerator_of(*device_world_[0])),
      memory_(accelerator_) {
  const uint32_t ranks = scene.ranks();
  pairs_ = static_cast<QueuePair*>(
      accelerator_.allocate_shared(size_t{ranks} * kQueues * sizeof(QueuePair)));
  std::vector<QueueEnd> ends(size_t{ranks} * kQueues);
  std::vector<MemoryKey> keys(ranks);
  for (uint32_t peer = 0; peer < ranks; ++peer) {
    keys[peer] = peer + 1;
    for (uint32_t queue = 0; queue < kQueues; ++queue) {
      QueuePair& made = pair(peer, queue);
      made.peer = peer;
      made.number = peer * kQueues + queue;
      ends[made.number] = {.pair = &made,
                           .mlx5 = nullptr,
                           .doorbell = nullptr,
                           .rank = 0,
                           .peer = peer,
                           .number = made.number,
                           .posted = 0,
                           .completed = 0};
    }
  }
  auto* const ends_there = static_cast<QueueEnd*>(memory_.reserve(ends.size() * sizeof(QueueEnd)));
  upload(ends_there, ends.data(), ends.size() * sizeof(QueueEnd));
  auto* const keys_there = static_cast<MemoryKey*>(memory_.reserve(ranks * sizeof(MemoryKey)));
  upload(keys_there, keys.data(), ranks * sizeof(MemoryKey));
  std::vector<std::shared_ptr<Accelerator>> accelerators;
  std::vector<uint32_t> host_of;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    host_of.push_back(rank / scene.locals);
    Accelerator* inner = &accelerator_;
    if (rank >= scene.locals)
      inner = hosts_.emplace_back(std::make_unique<simt::HostAccelerator>([] {})).get();
    accelerators.push_back(ranks_.emplace_back(
        std::make_shared<RankAccelerator>(*inner, accelerator_.kind(), accelerator_.capacity())));
  }
  const auto arena = [this, locals = scene.locals](uint32_t rank, size_t bytes) {
    if (rank >= locals || !on_gpu()) return InProcessFabric::fresh_memory(bytes);
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(accelerator_.allocate(bytes)),
                                      [this](std::byte* memory) { accelerator_.free(memory); });
  };
  worlds_ = join_all(
      accelerators, std::make_shared<OneRankFabric>(host_of, arena),
      {.timeout = std::chrono::seconds(on_gpu() ? 10 : 60), .arena_bytes = arena_bytes}, {},
      [queues = NetworkQueues{.ends = ends_there, .arena_keys = keys_there, .per_peer = kQueues},
       pinned](const NetworkPlace& place, TimePoint) {
        return std::make_shared<WireNetwork>(queues, place.far, !pinned);
      });
}

OneRankWorld::~OneRankWorld() {
  // Together, as worlds end.
  std::vector<std::jthread> threads;
  for (auto& world : worlds_) threads.emplace_back([&world] { world.reset(); });
  threads.clear();
  accelerator_.free_shared(pairs_);
}

void OneRankWorld::upload(void* to, const void* from, size_t bytes) {
  accelerator_.copy(to, from, bytes, Stream{});
  const Event event = accelerator_.record(Stream{});
  accelerator_.wait_until(accelerator_.now() + std::chrono::seconds(30),
                          [&] { return accelerator_.done(event); });
  accelerator_.free_event(event);
}

Card::Card(OneRankWorld& world, uint32_t groups, uint32_t blocks)
    : world_(world), groups_(groups), blocks_(blocks), issued_(groups) {
  if (!world.on_gpu()) return;
  Accelerator& device = world.device();
  device.prepare(card_kernel.entry);
  stream_ = device.make_stream();
  commands_ = static_cast<CardCommand*>(
      device.allocate_shared(size_t{groups} * kCardCommands * sizeof(CardCommand)));
  done_ = static_cast<uint32_t*>(device.allocate_shared(groups * sizeof(uint32_t)));
  ended_ = static_cast<uint32_t*>(device.allocate(groups * sizeof(uint32_t)));
}

Card::~Card() {
  if (!world_.on_gpu()) return;
  Accelerator& device = world_.device();
  device.free_stream(stream_);
  device.free_shared(commands_);
  device.free_shared(done_);
  device.free(ended_);
}

void Card::begin() {
  if (!world_.on_gpu()) return;
  std::memset(static_cast<void*>(commands_), 0,
              size_t{groups_} * kCardCommands * sizeof(CardCommand));
  std::memset(done_, 0, groups_ * sizeof(uint32_t));
  std::fill(issued_.begin(), issued_.end(), 0);
  Accelerator& device = world_.device();
  device.fill(ended_, 0, groups_ * sizeof(uint32_t), stream_);
  tokenyard::launch(
      device, card_kernel,
      {.blocks = groups_ * blocks_, .warps = kCardWarps, .cooperative = false, .local = true},
      stream_,
      CardParams{.commands = commands_,
                 .done = done_,
                 .ended = ended_,
                 .blocks_of_group = blocks_,
                 .limit_ns = 25'000'000'000});
  // A command for each block shows that it runs.
  for (uint32_t group = 0; group < groups_; ++group)
    for (uint32_t block = 0; block < blocks_; ++block) issue(group, {});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (uint32_t group = 0; group < groups_; ++group)
    while (done(group) < blocks_)
      if (std::chrono::steady_clock::now() > until)
        throw InternalError("the card's blocks do not run");
}

void Card::end() {
  if (!world_.on_gpu()) return;
  for (uint32_t group = 0; group < groups_; ++group)
    for (uint32_t block = 0; block < blocks_; ++block) {
      CardCommand& command = commands_[group * kCardCommands + ++issued_[group] % kCardCommands];
      command.ends = 1;
      __atomic_store_n(&command.number, issued_[group], __ATOMIC_RELEASE);
    }
}

void Card::issue(uint32_t group, const Move& move) {
  if (!world_.on_gpu()) {
    constexpr uint64_t kWordsMost = 8192;
    if (move.bytes > kWordsMost) {
      std::memcpy(move.to, move.from, move.bytes);
    } else {
      for (size_t at = 0; at < move.bytes; at += 8)
        __atomic_store_n(reinterpret_cast<uint64_t*>(move.to + at),
                         *reinterpret_cast<const uint64_t*>(move.from + at), __ATOMIC_RELAXED);
    }
    if (move.word == nullptr) return;
    if (move.word_bytes == 4)
      __atomic_store_n(static_cast<uint32_t*>(move.word), static_cast<uint32_t>(move.value),
                       __ATOMIC_RELEASE);
    else
      __atomic_store_n(static_cast<uint64_t*>(move.word), move.value, __ATOMIC_RELEASE);
    return;
  }
  const uint32_t number = ++issued_[group];
  // The command of this place is done long before, unless the card has ended.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (number > done(group) + kCardCommands - 1)
    if (std::chrono::steady_clock::now() > until) return;
  CardCommand& command = commands_[group * kCardCommands + number % kCardCommands];
  command.from = move.from;
  command.to = move.to;
  command.bytes = move.bytes;
  command.word = move.word;
  command.value = move.value;
  command.word_bytes = move.word_bytes;
  command.ends = 0;
  __atomic_store_n(&command.number, number, __ATOMIC_RELEASE);
}

uint32_t Card::done(uint32_t group) const {
  return __atomic_load_n(&done_[group], __ATOMIC_ACQUIRE);
}

}  // namespace tokenyard::bench
