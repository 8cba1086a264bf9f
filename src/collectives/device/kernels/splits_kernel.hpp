/// The kernel of all_to_all with splits on the device. See splits.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/serve_messages_kernel.hpp"
#include "collectives/device/kernels/splits.hpp"

namespace tokenyard::device_collectives {

enum class SplitsBarrier : uint32_t {
  described = 1,  ///< the block's messages are in shared memory
};

struct SplitsShared : CallShared {
  bool alike;  ///< whether data may move
  MessagesParams messages;
};

/// A number of bytes that no array holds, for a split that is none.
inline constexpr uint64_t kNoBytes = (uint64_t{1} << CountWord::kBits) - 1;

/// The facts that a warp which compares splits needs.
struct SplitsWork {
  const SplitsParams& params;
  const CallParams& call;
  const BlockDeadline& deadline;
  const uint32_t parity;

  /// Returns what this rank's splits say of a member.
  TOKENYARD_DEVICE uint64_t own_bytes_for(uint32_t member) const {
    const int64_t elements = params.splits[call.empty.slot_of(member)];
    const uint64_t most = params.input_bytes / params.element_bytes;
    return elements < 0 || static_cast<uint64_t>(elements) > most
               ? kNoBytes
               : static_cast<uint64_t>(elements) * params.element_bytes;
  }
  /// Returns what a rank has published about a peer, or about itself.
  TOKENYARD_DEVICE CountWord published(uint32_t rank, uint32_t peer) const {
    return {load<Order::relaxed, Scope::sys>(call.windows.counts(call.rank, parity, rank, peer))};
  }
  TOKENYARD_DEVICE uint64_t sent_by(uint32_t rank) const {
    uint64_t bytes = 0;
    for (uint32_t peer = 0; peer < call.ranks; ++peer) bytes += published(rank, peer).sent();
    return bytes;
  }
  TOKENYARD_DEVICE uint64_t sent_to(uint32_t rank) const {
    uint64_t bytes = 0;
    for (uint32_t peer = 0; peer < call.ranks; ++peer) bytes += published(peer, rank).sent();
    return bytes;
  }
};

/// Tells all ranks this rank's splits. Beside what it sends to itself stands what its result holds,
/// beside the others what its input holds. Called by a warp, before it publishes the call.
TOKENYARD_DEVICE void publish_splits(const SplitsWork& work) {
  const CallParams& call = work.call;
  for (uint32_t i = warp::lane(); i < call.ranks * call.ranks; i += kWarpLanes) {
    const uint32_t rank = i % call.ranks, peer = i / call.ranks;
    const uint64_t holds = peer == call.rank ? work.params.result_bytes : work.params.input_bytes;
    store<Order::relaxed, Scope::sys>(call.windows.counts(rank, work.parity, call.rank, peer),
                                      CountWord::of(work.own_bytes_for(peer), holds).bits);
  }
  warp::sync();  // A lane's call word releases all lanes' counts.
}

/// Refuses the call if a lane's rank needs more bytes than it has. Called by a warp; returns
/// whether none does.
TOKENYARD_DEVICE bool holds_all(const SplitsWork& work, WaitPhase phase, uint32_t rank,
                                uint64_t holds, uint64_t needed) {
  const uint32_t others = warp::ballot(rank < work.call.ranks && needed > holds);
  if (others == 0) return true;
  if (warp::lane() == first_bit(others))
    work.deadline.fail(
        Failure::refused,
        {.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = holds, .seen = needed});
  return false;
}

/// Returns whether all splits fit. Called by a warp, once it has all ranks' call words.
TOKENYARD_DEVICE bool splits_fit(const SplitsWork& work) {
  const CallParams& call = work.call;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    const bool is_one = rank < call.ranks;
    const uint64_t input = !is_one ? 0
                           : call.ranks == 1
                               ? work.params.input_bytes
                               : work.published(rank, (rank + 1) % call.ranks).expected();
    if (!holds_all(work, WaitPhase::splits, rank, input, is_one ? work.sent_by(rank) : 0))
      return false;
    if (!holds_all(work, WaitPhase::capacity, rank,
                   is_one ? work.published(rank, rank).expected() : 0,
                   is_one ? work.sent_to(rank) : 0))
      return false;
  }
  return true;
}

/// Describes this rank's messages, of a peer by each lane. Called by a warp.
TOKENYARD_DEVICE void describe_messages(const SplitsWork& work, MessagesParams& messages) {
  const CallParams& call = work.call;
  for (uint32_t peer = warp::lane(); peer < call.ranks; peer += kWarpLanes) {
    uint64_t sent_at = 0, received_at = 0;
    for (uint32_t before = 0; before < peer; ++before) {
      sent_at += work.published(call.rank, before).sent();
      received_at += work.published(before, call.rank).sent();
    }
    const uint64_t sent = work.published(call.rank, peer).sent();
    const uint64_t received = work.published(peer, call.rank).sent();
    const std::byte* const from = call.input + sent_at;
    std::byte* const to = call.result + received_at;
    if (block::index() == 0)
      work.params.received[call.empty.slot_of(peer)] =
          static_cast<int64_t>(received / work.params.element_bytes);
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
               .chunk_bytes = work.params.chunk_bytes,
               .receives = false};
    pair[1] = {.data = to,
               .bytes = received,
               .first = 0,
               .peer = peer,
               .label = 0,
               .chunk_bytes = work.params.chunk_bytes,
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
    const SplitsWork work{params, call, deadline, parity_of(epoch)};
    if (block::index() == 0) {
      publish_splits(work);
      fence_release<Scope::sys>();  // The call word releases the splits, too.
      publish_call(call, epoch);
    }
    const bool alike = await_calls(call, epoch, deadline) && splits_fit(work);
    if (alike) describe_messages(work, shared.messages);
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
  ServedMessages served = served_messages(shared.messages);
  serve_messages(work, served);
  keep_own(shared.messages);
}

TOKENYARD_DEFINE_KERNEL(splits_kernel, exchange_splits, SplitsParams, SplitsShared,
                        kMessagesThreadsMax)

}  // namespace tokenyard::device_collectives
