#include "megakernel/network_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/device_tables.hpp"
#include "megakernel/proofs/triggers.hpp"
#include "tokenyard/megakernel/error.hpp"

namespace tokenyard::megakernel {

std::vector<FarPut> puts_of(World& world, const Graph& graph, const Region& region) {
  const TensorOptions& tensor = graph.tensors()[region.tensor];
  const auto refuse = [&](const char* why) {
    throw InvalidGraph(
        GraphFault::between_hosts,
        {fmt::format("tensor '{}' of rank {}, which is on another host", tensor.name, region.rank),
         "is written", why},
        "the pieces that TensorMemory::shared returns, as places of the tensor");
  };
  if (tensor.places.size() != graph.place().ranks) refuse("and has no places on all ranks");
  const auto* const from = tensor.places[region.rank].as<std::byte>() + region.begin;
  const auto mirror = network_of(world)->mirrors().from(from);
  const uint64_t bytes = region.end - region.begin;
  if (!mirror || mirror->rank != region.rank || mirror->bytes < bytes)
    refuse("and its place there is no mirror of that rank's memory");
  std::vector<FarPut> puts;
  for (uint64_t at = 0; at < bytes; at += kNetworkPutMax)
    puts.push_back(
        {.source = {.key = mirror->key,
                    .bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes - at, kNetworkPutMax)),
                    .from = from + at},
         .target = mirror->target + at});
  return puts;
}

NetworkTables::NetworkTables(World& world, const Graph& graph, const NetworkPlan& plan,
                             const FarRanks& far)
    : world_(world),
      layout_{.ranks = world.size(), .events = static_cast<uint32_t>(graph.events().size())},
      landing_(world, layout_.bytes()),
      queue_(*network_of(world)) {
  accelerator_of(world).fill(landing_.data(), 0, layout_.bytes(), {});
  await_stream(world, {}, "zeroed words of the network");
  introduce(graph, plan, far);
}

NetworkTables::~NetworkTables() {
  if (!quarantined_) landing_.give_back();
}

template <class T>
T* NetworkTables::place(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  auto memory = std::make_unique<DeviceMemory>(accelerator_of(world_), std::max<size_t>(bytes, 1),
                                               DeviceMemory::Kind::device);
  if (bytes > 0) accelerator_of(world_).copy(memory->as<void>(), values.data(), bytes, {});
  await_stream(world_, {}, "a table of the network");
  tables_.push_back(std::move(memory));
  return tables_.back()->as<T>();
}

/// Tells all ranks where this one's landing lies, and writes the block's tables.
void NetworkTables::introduce(const Graph& graph, const NetworkPlan& plan, const FarRanks& far) {
  struct Mine {
    uint64_t offset;
    uint32_t key, has_queue;
  };
  landing_.make_known();
  const std::vector<Mine> everybodys = gather(world_,
                                              Mine{.offset = landing_.target().offset,
                                                   .key = landing_.target().key,
                                                   .has_queue = queue_.exist() ? 1u : 0u},
                                              "megakernel: landings of networks");
  for (uint32_t rank = 0; rank < everybodys.size(); ++rank) {
    if (everybodys[rank].has_queue != 0) continue;
    landing_.give_back();  // All ranks refuse alike, so nobody writes.
    throw Unsupported("megakernel", too_few_queues(*network_of(world_), 1, rank));
  }
  const auto landing_of = [&](uint32_t rank, size_t at) {
    return NetworkTarget{.key = everybodys[rank].key, .offset = everybodys[rank].offset + at};
  };
  std::vector<FarPeer> peers;
  std::vector<FarMessageRecord> messages;
  std::vector<FarPut> puts;
  std::vector<FarSignal> signals;
  for (const uint32_t rank : far.of(world_.rank())) {
    FarPeer peer{.rank = rank,
                 .messages_at = static_cast<uint32_t>(messages.size()),
                 .messages = 0,
                 .published = plan.published[rank],
                 .ready = landing_of(rank, layout_.ready_at(world_.rank()))};
    for (const FarMessage& message : plan.messages) {
      if (message.rank != rank) continue;
      ++peer.messages;
      FarMessageRecord record{.sent = plan.sent[message.task],
                              .read = message.writes.empty() ? kNoEvent : plan.read[message.task],
                              .puts_at = static_cast<uint32_t>(puts.size()),
                              .puts = 0,
                              .signals_at = static_cast<uint32_t>(signals.size()),
                              .signals = static_cast<uint32_t>(message.signals.size())};
      for (const Region& region : message.writes)
        for (const FarPut& put : puts_of(world_, graph, region)) puts.push_back(put);
      record.puts = static_cast<uint32_t>(puts.size()) - record.puts_at;
      for (const Signal& signal : message.signals)
        signals.push_back(
            {.word = landing_of(rank, layout_.signals_at(signal.event.id)), .count = signal.count});
      messages.push_back(record);
    }
    peers.push_back(peer);
  }
  params_ = {.blocks = 1,
             .peers = static_cast<uint32_t>(peers.size()),
             .far_peers = place(peers),
             .messages = place(messages),
             .puts = place(puts),
             .signals = place(signals),
             .begun = place(std::vector<uint64_t>(peers.size())),
             .handled = place(std::vector<uint64_t>(peers.size())),
             .sent = place(std::vector<uint64_t>(messages.size())),
             .unread = place(std::vector<UnreadMessage>(messages.size())),
             .rings = place(std::vector<UnreadRing>(peers.size())),
             .incoming = place(plan.incoming),
             .incoming_count = static_cast<uint32_t>(plan.incoming.size()),
             .taken = place(std::vector<uint64_t>(plan.incoming.size())),
             .landing = landing_.data(),
             .layout = layout_,
             .queues = network_of(world_)->queues(),
             .queue = queue_.number(),
             .left = place(std::vector<uint64_t>(1))};
}

void NetworkTables::describe(RunParams& params) const {
  params.network = params_;
}

void NetworkTables::drain() const {
  Accelerator& accelerator = accelerator_of(world_);
  const auto begin = accelerator.now();
  if (network_of(world_)->drain(begin + world_.timeout())) return;
  throw PeerTimeout(
      WaitFacts{.rank = world_.rank(),
                .phase = "megakernel: the network's last requests of a run",
                .expected = 0,
                .seen = 0,
                .waited_s = std::chrono::duration<double>(accelerator.now() - begin).count()});
}

}  // namespace tokenyard::megakernel
