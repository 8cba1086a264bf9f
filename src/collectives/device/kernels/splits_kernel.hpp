/// The kernel of all_to_all with splits on the device. See splits.hpp.
#pragma once

#include "collectives/device/kernels/serve_messages_kernel.hpp"
#include "collectives/device/kernels/split_counts_kernel.hpp"

namespace tokenyard::device_collectives {

enum class SplitsBarrier : uint32_t {
  described = 1,  ///< the block's messages are in shared memory
};

struct SplitsShared : CallShared {
  bool alike;  ///< whether data may move
  MessagesParams messages;
};

/// Tells all ranks this rank's splits. Called by a warp, before it publishes the call.
TOKENYARD_DEVICE void publish_splits(const SplitsWork& work) {
  const CallParams& call = work.call;
  for (uint32_t i = warp::lane(); i < call.ranks * call.ranks; i += kWarpLanes) {
    const uint32_t rank = i % call.ranks, peer = i / call.ranks;
    store<Order::relaxed, Scope::sys>(call.windows.counts(rank, work.parity, call.rank, peer),
                                      work.own_word(peer).bits);
  }
  warp::sync();  // A lane's call word releases all lanes' counts.
}

/// Describes this rank's messages, of a peer by each lane. Called by a warp.
TOKENYARD_DEVICE void describe_messages(const SplitsWork& work, uint32_t chunk_bytes,
                                        MessagesParams& messages) {
  const CallParams& call = work.call;
  for (uint32_t peer = warp::lane(); peer < call.ranks; peer += kWarpLanes) {
    const uint64_t sent = work.published(call.rank, peer).sent();
    const uint64_t received = work.published(peer, call.rank).sent();
    const std::byte* const from = call.input + work.sent_at(peer);
    std::byte* const to = call.result + work.received_at(peer);
    if (peer == call.rank) {
      messages.own_bytes = sent;
      messages.own_input = from;
      messages.own_result = to;
      continue;
    }
    // Every rank begins with another one.
    const uint32_t turn = (peer + call.ranks - call.rank) % call.ranks;
    Message* const pair = messages.messages + 2 * (turn - 1);
    pair[0] = {.data = const_cast<std::byte*>(from),
               .bytes = sent,
               .first = 0,
               .peer = peer,
               .label = 0,
               .chunk_bytes = chunk_bytes,
               .receives = false};
    pair[1] = {.data = to,
               .bytes = received,
               .first = 0,
               .peer = peer,
               .label = 0,
               .chunk_bytes = chunk_bytes,
               .receives = true};
  }
  if (warp::elect()) {
    messages.collective = true;
    messages.count = 2 * (call.ranks - 1);
  }
}

TOKENYARD_DEVICE void exchange_splits(const SplitsParams& params) {
  auto& shared = block::shared<SplitsShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline = begin_deadline(call);
  if (!begin_call(call, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  const bool moves = warp::index() + 1 != warp::count();
  if (!moves) {
    const SplitsWork work{params.arrays, call, deadline, parity_of(epoch)};
    if (block::index() == 0) {
      publish_splits(work);
      fence_release<Scope::sys>();  // The call word releases the splits, too.
      publish_call(call, epoch);
    }
    bool alike = await_calls(call, epoch, deadline);
    warp::sync();  // Each lane has acquired another rank's word.
    alike = alike && splits_fit(work);
    if (alike) describe_messages(work, params.chunk_bytes, shared.messages);
    if (alike && block::index() == 0) store_received(work);
    if (warp::elect()) shared.alike = alike;
    pass_epoch(call, epoch);
  }
  NamedBarrier(SplitsBarrier::described).sync(block::threads());
  if (!moves || !shared.alike) return;
  const MessagesWork work{.params = shared.messages,
                          .call = call,
                          .deadline = deadline,
                          .epoch = epoch,
                          .digest = digest_of(call, epoch),
                          .parity = parity_of(epoch),
                          .places = call.windows.layout.rings.places};
  ServedMessages served = served_messages(shared.messages, grid::blocks());
  serve_messages(work, served);
  keep_own(shared.messages);
}

TOKENYARD_DEFINE_KERNEL(splits_kernel, exchange_splits, SplitsParams, SplitsShared,
                        kMessagesThreadsMax)

}  // namespace tokenyard::device_collectives
