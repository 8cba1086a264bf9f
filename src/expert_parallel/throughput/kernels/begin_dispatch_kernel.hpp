/// The start of every dispatch, until all of the block know the rows of its tokens.
#pragma once

#include "expert_parallel/throughput/kernels/metadata_kernel.hpp"
#include "expert_parallel/throughput/kernels/move_rows_kernel.hpp"
#include "expert_parallel/throughput/kernels/report_kernel.hpp"
#include "expert_parallel/throughput/kernels/slots_kernel.hpp"

namespace tokenyard::throughput {

/// Initializes shared memory. Called by the whole block, which must synchronize afterwards.
TOKENYARD_DEVICE void ready_shared_memory(const DispatchParams& params, DispatchShared& shared,
                                          const DispatchTail& tail) {
  const ThreadGroup threads = ThreadGroup::of_block();
  for (uint32_t i = threads.index; i < tail.word_count(); i += threads.size) tail.words()[i] = 0;
  for (uint32_t i = threads.index; i < params.movers * params.plan.stages; i += threads.size)
    shared.full[i].init(1);
  fence_async_shared();
  if (threads.index != 0) return;
  shared.refused_token = kNothingRefused;
  shared.refusing_block = kNothingRefused;
  shared.full_rank = kNothingRefused;
  shared.differing_rank = kNothingRefused;
}

/// Waits until every rank has made the same call; returns false if the call has failed. Called by
/// the first warp. Ranks whose rows differ refuse the call if it exchanges counts, as a bad token
/// does; on a known route the call fails.
TOKENYARD_DEVICE bool await_all(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const ThreadGroup lanes = ThreadGroup::of_warp();
  if (!warp::all(read_ready_words(params, call.ready_words(), call.tail.waits(), call.deadline,
                                  call.epoch, Phase::dispatch_ready, lanes)))
    return false;
  warp::sync();
  return compare_calls(params, call.ready_words(), call.deadline, Phase::dispatch_ready, lanes,
                       exchanges_counts(params.kind) ? &call.shared.differing_rank : nullptr);
}

/// Publishes and awaits ready words, and starts loading rows, while the other warps count. Called
/// by each mover. Returns false if the call has failed.
template <class Mover>
TOKENYARD_DEVICE bool open_dispatch(const Dispatch& call, Mover& mover) {
  const CallParams& params = call.params.call;
  if (sets_ready()) set_ready(params, call.epoch, call.route_epoch);
  mover.load_own();
  const bool heard = warp::index() != 0 || await_all(call);
  if (thread::index() == 0) note(params, call.shared.call, Moment::greeted);
  NamedBarrier(DispatchBarrier::greeted).sync(call.params.movers * kWarpLanes);
  // Orders the peers' ordinary accesses to their buffers, which await_all acquired and the barrier
  // passed on, before this thread's async copies.
  fence_async();
  return heard;
}

/// Counts the block's tokens, then gathers everybody's counts. Called by all warps that move no
/// rows. Returns false if the call has failed.
TOKENYARD_DEVICE bool count(const Dispatch& call, TokenChoices& tokens) {
  count_tokens(call, tokens);
  NamedBarrier(DispatchBarrier::counted).sync(call.others().size);
  if (call.others().index == 0) note(call.params.call, call.shared.call, Moment::counted);
  publish_counts(call);
  find_earlier_rows(call);
  return gather_counts(call);
}

/// Assigns every token its rows. Called by the whole block, which has synchronized after it knew
/// the counts. Returns false if the call is refused; then no row has moved and none will.
TOKENYARD_DEVICE bool find_routes(const Dispatch& call, TokenRange counted) {
  const CallParams& params = call.params.call;
  const bool known_already = params.kind == CallKind::dispatch_again;
  if (!known_already && warp::index() == 0) find_overflow(call);
  if (!known_already && !call.moves_rows()) assign_slots(call, counted);
  block::sync();
  if (call.refused()) return false;
  if (thread::index() == 0) note(params, call.shared.call, Moment::routed);
  if (!call.moves_rows() && call.others().index == 0 && !known_already) announce_routes(call);
  return true;
}

/// Ends a mover that has not moved its rows. Returns true if the call is refused, false if it has
/// failed.
template <class Mover>
TOKENYARD_DEVICE bool end_unmoved(const Dispatch& call, const Mover& mover) {
  mover.let_go();
  if (block::index() == 0 && thread::index() == 0 && call.refused()) report_refusal(call);
  return !call.deadline.failed();
}

}  // namespace tokenyard::throughput
