/// The kernel of messages between pairs of ranks. See messages.hpp.
#pragma once

#include "collectives/device/kernels/counts_kernel.hpp"
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

TOKENYARD_DEVICE void exchange_messages(const MessagesParams& params) {
  auto& shared = block::shared<CallShared>();
  const BlockDeadline deadline = begin_deadline(params.call);
  if (!begin_messages(params, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  const MessagesWork work = MessagesWork::of(params, deadline, epoch);
  const bool moves = warp::index() + 1 != warp::count();
  ServedMessages served{};
  if (moves) served = served_messages(params, grid::blocks());
  if (!params.collective) block::sync();
  if (moves) {
    serve_messages(work, served);
    if (params.collective) keep_own(params);
    return;
  }
  if (!params.collective) return advance_counters(params, grid::blocks());
  if (block::index() == 0) {
    publish_counts(work);
    fence_release<Scope::sys>();  // The call word releases the counts, too.
    publish_call(params.call, epoch);
    await_calls(params.call, epoch, deadline);
    compare_counts(params.call, work.parity, deadline);
  }
  pass_epoch(params.call, epoch);
}

TOKENYARD_DEFINE_KERNEL(messages_kernel, exchange_messages, MessagesParams, CallShared,
                        kMessagesThreadsMax)

}  // namespace tokenyard::device_collectives
