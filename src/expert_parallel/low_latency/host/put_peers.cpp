#include "expert_parallel/low_latency/host/put_peers.hpp"

#include <algorithm>
#include <utility>

#include "fabric/collective_step.hpp"
#include "fabric/gather.hpp"
#include "fabric/network/network.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::low_latency {

namespace {

constexpr const char* kMirrors = "LowLatency: mirrors";
constexpr uint32_t kWarpsGpu = 16, kWarpsHost = 2;
/// Deadline of a wait for a message, in timeouts of its call. A rank that waits for one of its own
/// host sends no heartbeats to others meanwhile: those must outwait it, and what it began later.
constexpr uint32_t kTimeouts = 2;
static_assert(kWarpsGpu * kWarpLanes <= kMessagesThreadsMax);

}  // namespace

MessageLayout message_layout(const LowLatencyOptions& options, uint32_t peers) {
  const auto pieces = [&](LowLatencyRows rows) {
    const RowLayout row = row_layout(options, rows);
    return row.data_pieces() + (row.is_fp8() ? row.units() : 0);
  };
  const uint32_t fp8 = pieces(LowLatencyRows::fp8);
  const SumsLayout sums = SumsLayout::of(options.hidden);
  return MessageLayout(
      {.peers = peers,
       .tokens_max = options.tokens_max,
       .topk = options.topk,
       .row_pieces = options.bf16_rows ? std::max(fp8, pieces(LowLatencyRows::bf16)) : fp8,
       .partial_pieces = std::max(sums.bf16_pieces, sums.logfmt_pieces)});
}

PutPeers::PutPeers(const Setup& setup, const CallStreams& streams, uint32_t epoch)
    : setup_(setup),
      ranks_(setup.paths.put_peers()),
      most_(setup.paths.most_put_peers()),
      layout_(message_layout(setup.options, most_)),
      mirrors_(Mirrors::of(setup.layout, setup.world.rank(), static_cast<uint32_t>(ranks_.size()))),
      mirror_memory_(allocate_on_all(setup.world, std::max<size_t>(mirrors_.bytes, 1), kMirrors,
                                     ArenaEnd::upper)),
      shared_(zeroed_memory(streams)),
      queue_(std::in_place, *network_of(setup.world)),
      workspace_(setup.accelerator, PutWorkspace::bytes(setup.world.size()),
                 DeviceMemory::Kind::device) {
  setup.accelerator.prepare(messages_kernel.entry);
  setup.accelerator.fill(mirror_memory_.data(), 0, mirror_memory_.bytes(), Stream{});
  setup.accelerator.fill(workspace_.as<void>(), 0, PutWorkspace::bytes(setup.world.size()),
                         Stream{});
  streams.await(Stream{}, "zeroed words");
  introduce(streams, epoch);
}

PutPeers::~PutPeers() = default;

void PutPeers::begin_anew(const CallStreams& streams, uint32_t epoch) {
  accompany_step(setup_.world, kMirrors);
  const std::unique_ptr<NetworkMemory> before = std::exchange(shared_, zeroed_memory(streams));
  introduce(streams, epoch);
  before->give_back();
}

std::unique_ptr<NetworkMemory> PutPeers::zeroed_memory(const CallStreams& streams) const {
  auto memory = std::make_unique<NetworkMemory>(setup_.world, layout_.bytes());
  setup_.accelerator.fill(memory->data(), 0, layout_.bytes(), Stream{});
  streams.await(Stream{}, "zeroed messages");
  return memory;
}

/// Tells all ranks where this one's memory lies, and writes the tables of kernels.
void PutPeers::introduce(const CallStreams& streams, uint32_t epoch) {
  struct Mine {
    uint64_t offset;
    uint32_t key, has_queue;
  };
  World& world = setup_.world;
  shared_->make_known();
  const std::vector<Mine> everybodys = gather(world,
                                              Mine{.offset = shared_->target().offset,
                                                   .key = shared_->target().key,
                                                   .has_queue = queue_->exist() ? 1u : 0u},
                                              "LowLatency: memory of messages");
  for (const uint32_t rank : present_ranks(world)) {
    if (everybodys[rank].has_queue != 0) continue;
    shared_->give_back();  // All ranks refuse alike, so nobody writes.
    throw Unsupported("LowLatency", too_few_queues(*network_of(world), 1, rank));
  }
  std::vector<PutPeer> peers;
  for (const uint32_t rank : ranks_)
    peers.push_back({.rank = rank,
                     .there = setup_.paths.number_at(rank),
                     .memory = {.key = everybodys[rank].key, .offset = everybodys[rank].offset}});
  PutState begun{};
  for (uint32_t channel = 0; channel < kChannels; ++channel) {
    begun.signalled[channel] = begun.credited[channel] = epoch;
    begun.sent[channel][0] = begun.sent[channel][1] = epoch;
    for (uint32_t& ticket : begun.ticket[channel]) ticket = 0;
  }
  const std::vector<PutState> states(ranks_.size(), begun);
  const size_t states_at = (peers.size() * sizeof(PutPeer) + 63) / 64 * 64;
  const size_t bytes = states_at + states.size() * sizeof(PutState);
  tables_.emplace(setup_.accelerator, bytes, DeviceMemory::Kind::device);
  auto* const base = tables_->as<std::byte>();
  if (!peers.empty()) {
    setup_.accelerator.copy(base, peers.data(), peers.size() * sizeof(PutPeer), Stream{});
    setup_.accelerator.copy(base + states_at, states.data(), states.size() * sizeof(PutState),
                            Stream{});
    streams.await(Stream{}, "tables of put peers");
  }
  paths_ = {.count = static_cast<uint32_t>(ranks_.size()),
            .peers = reinterpret_cast<const PutPeer*>(base),
            .states = reinterpret_cast<PutState*>(base + states_at),
            .workspace = workspace_.as<PutWorkspace>(),
            .layout = layout_,
            .memory = shared_->data(),
            .key = shared_->target().key,
            .queues = network_of(world)->queues(),
            .queue = queue_->number(),
            .first_epoch = epoch};
}

std::vector<std::byte*> PutPeers::with_mirrors(std::span<std::byte* const> windows) const {
  std::vector<std::byte*> addresses(windows.begin(), windows.end());
  for (size_t number = 0; number < ranks_.size(); ++number)
    addresses[ranks_[number]] = mirror_memory_.data() + mirrors_.begins[number];
  return addresses;
}

MessagesParams PutPeers::messages(Channel channel, const CallParams& call, Part part) const {
  MessagesParams params{.call = call,
                        .paths = paths_,
                        .channel = channel,
                        .tokens = 0,
                        .tokens_max = setup_.options.tokens_max,
                        .topk = setup_.options.topk,
                        .row = {},
                        .sums = setup_.sums,
                        .logfmt = false,
                        .publishes = false,
                        .weights = nullptr,
                        .batch = 0,
                        .weights_stamp = nullptr,
                        .row_slot = nullptr,
                        .waited = nullptr};
  params.call.part = part;
  params.call.timeout =
      std::min(call.timeout, timeout_units(std::chrono::nanoseconds::max()) / kTimeouts) *
      kTimeouts;
  params.call.windows.layout = setup_.layout;
  return params;
}

void PutPeers::launch_messages(const MessagesParams& params, uint32_t blocks, Stream stream) const {
  launch(setup_.accelerator, messages_kernel,
         {.blocks = std::min(most_, blocks),
          .warps = setup_.accelerator.kind() == AcceleratorKind::gpu ? kWarpsGpu : kWarpsHost,
          .cooperative = false,
          .overlap_previous = true},
         stream, params);
}

void PutPeers::launch_rows(const DispatchParams& call, Part part, uint32_t blocks,
                           Stream stream) const {
  MessagesParams params = messages(Channel::rows, call.call, part);
  params.tokens = call.tokens;
  params.row = call.row;
  params.publishes = call.weights != nullptr;
  params.weights = call.weights;
  params.batch = call.batch;
  params.waited = call.out.waited;
  launch_messages(params, blocks, stream);
}

void PutPeers::launch_weights(const CombineParams& call, uint32_t blocks, Stream stream) const {
  MessagesParams params = messages(Channel::weights, call.call, Part::both);
  params.tokens = call.tokens;
  params.publishes = !call.published;
  params.weights = call.weights;
  params.batch = call.batch;
  params.weights_stamp = call.weights_stamp;
  launch_messages(params, blocks, stream);
}

void PutPeers::launch_sums(const CombineParams& call, bool logfmt, Part part, uint32_t blocks,
                           Stream stream) const {
  MessagesParams params = messages(Channel::sums, call.call, part);
  params.tokens = call.tokens;
  params.logfmt = logfmt;
  params.row_slot = call.row_slot;
  params.waited = call.waited;
  launch_messages(params, blocks, stream);
}

void PutPeers::give_back() {
  shared_->give_back();
}

void PutPeers::retire(const CallStreams& streams) const {
  const uint32_t retired = 1;
  setup_.accelerator.copy(&workspace_.as<PutWorkspace>()->retired, &retired, sizeof(retired),
                          Stream{});
  streams.await(Stream{}, "the end of what was captured");
}

}  // namespace tokenyard::low_latency
