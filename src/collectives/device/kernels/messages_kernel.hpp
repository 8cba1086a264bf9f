/// The kernel of messages between pairs of ranks. See messages.hpp.
#pragma once

#include "collectives/device/kernels/serve_messages_kernel.hpp"

namespace tokenyard::device_collectives {

/// Tells all ranks how much this rank sends to and expects from each. Called by a warp, before it
/// publishes the call, whose fence releases these words.
TOKENYARD_DEVICE void publish_counts(const MessagesWork& work) {
  const CallParams& call = work.call;
  // A rank's messages come in pairs: what it sends to a peer, and what it expects.
  const uint32_t words = call.ranks * (work.params.count / 2);
  for (uint32_t i = warp::lane(); i < words; i += kWarpLanes) {
    const uint32_t rank = i % call.ranks;
    const Message* const pair = work.params.messages + i / call.ranks * 2;
    store<Order::relaxed, Scope::sys>(call.windows.counts(rank, work.parity, call.rank, pair->peer),
                                      CountWord::of(pair[0].bytes, pair[1].bytes).bits);
  }
  warp::sync();  // A lane's call word releases all lanes' counts.
}

/// Compares what all ranks send with what others expect. Called by a warp, once it has all ranks'
/// call words.
TOKENYARD_DEVICE void compare_counts(const MessagesWork& work) {
  const CallParams& call = work.call;
  if (!warp::all(!work.deadline.failed())) return;
  warp::sync();  // Each lane has acquired another rank's word.
  const auto count_of = [&](uint32_t rank, uint32_t peer) {
    return CountWord{
        load<Order::relaxed, Scope::sys>(call.windows.counts(call.rank, work.parity, rank, peer))};
  };
  const uint32_t pairs = call.ranks * call.ranks;
  for (uint32_t first = 0; first < pairs; first += kWarpLanes) {
    const uint32_t pair = first + warp::lane();
    const uint32_t source = pair / call.ranks, destination = pair % call.ranks;
    uint64_t sent = 0, expected = 0;
    if (pair < pairs && source != destination) {
      sent = count_of(source, destination).sent();
      expected = count_of(destination, source).expected();
    }
    const uint32_t others = warp::ballot(sent != expected);
    if (others == 0) continue;
    if (warp::lane() == first_bit(others))
      work.deadline.fail(Failure::refused, {.phase = static_cast<uint32_t>(WaitPhase::counts),
                                            .rank = destination,
                                            .expected = sent | uint64_t{source} << CountWord::kBits,
                                            .seen = expected});
    return;
  }
}

/// Called by all threads of a block; synchronizes them. Returns false if an earlier call has
/// failed.
TOKENYARD_DEVICE bool begin_messages(const MessagesParams& params, CallShared& shared,
                                     const BlockDeadline& deadline) {
  if (params.collective) return begin_call(params.call, shared, deadline);
  if (thread::index() == 0) shared = {.epoch = 0, .failed = deadline.failed()};
  block::sync();
  return !shared.failed;
}

TOKENYARD_DEVICE void exchange_messages(const MessagesParams& params) {
  auto& shared = block::shared<CallShared>();
  const BlockDeadline deadline = begin_deadline(params.call);
  if (!begin_messages(params, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  const MessagesWork work = MessagesWork::of(params, deadline, epoch);
  const bool moves = warp::index() + 1 != warp::count();
  ServedMessages served{};
  if (moves) served = served_messages(params);
  if (!params.collective) block::sync();
  if (moves) {
    serve_messages(work, served);
    if (params.collective) keep_own(params);
    return;
  }
  if (!params.collective) return advance_counters(params);
  if (block::index() == 0) {
    publish_counts(work);
    fence_release<Scope::sys>();  // The call word releases the counts, too.
    publish_call(params.call, epoch);
    await_calls(params.call, epoch, deadline);
    compare_counts(work);
  }
  pass_epoch(params.call, epoch);
}

TOKENYARD_DEFINE_KERNEL(messages_kernel, exchange_messages, MessagesParams, CallShared,
                        kMessagesThreadsMax)

}  // namespace tokenyard::device_collectives
