/// The kernel of a dispatch that groups rows by expert as they arrive. See dispatch_by_expert.hpp
/// for the protocol.
#pragma once

#include "device/apart.hpp"
#include "expert_parallel/by_expert/arrived_rows_kernel.hpp"
#include "expert_parallel/by_expert/place_received_kernel.hpp"
#include "expert_parallel/throughput/kernels/begin_dispatch_kernel.hpp"
#include "expert_parallel/throughput/kernels/scales_kernel.hpp"

namespace tokenyard::expert_major {

using throughput::DispatchShared;
using throughput::Moment;

/// Barriers of this kernel besides those of every dispatch.
enum class ByExpertBarrier : uint32_t {
  experts_known = 4,  ///< all warps: movers wait for the first rows of experts, the others arrive
};

using Sender = throughput::RowMover<throughput::Arrivals::by_row>;

/// Zeroes the tail. Called by the whole block, which must synchronize afterwards.
TOKENYARD_DEVICE void ready_group(const GroupTail& tail) {
  for (uint32_t i = thread::index(); i < tail.word_count(); i += block::threads())
    tail.words()[i] = 0;
  fence_async();  // Orders the zeros before bulk copies that read them.
}

/// Returns the received rows in the layout that the counts imply.
TOKENYARD_DEVICE Grouping grouping_of(const ByExpertParams& params, const Dispatch& call) {
  const throughput::CallParams& common = call.params.call;
  const auto place = [&](throughput::Place what) {
    return common.arenas.mine() +
           size_t{call.tail.places().of(what, common.rank)} * throughput::kOffsetUnit;
  };
  return {.topk = params.dispatch.topk,
          .alignment = params.alignment,
          .clear_padding = params.clear_padding,
          .scales = reinterpret_cast<const uint32_t*>(place(throughput::Place::scales)),
          .ids = reinterpret_cast<const int32_t*>(place(throughput::Place::ids)),
          .weights = reinterpret_cast<const float*>(place(throughput::Place::weights)),
          .to = params.to,
          .layout = params.layout};
}

/// Sends rows if the block is a sender, then spreads rows. Called by each mover. Returns false if
/// the call has failed.
TOKENYARD_DEVICE bool carry_rows(const ByExpertParams& params, const Dispatch& call,
                                 const Group& group, Sender& sender) {
  const bool sends = block::index() < params.senders;
  const bool sent = !sends || sender.move_all(call);
  if (sends && thread::index() == 0) note(call.params.call, call.shared.call, Moment::moved);
  // Reached after a failure too: a warp that left early would hang the others.
  NamedBarrier(ByExpertBarrier::experts_known).sync(block::threads());
  if (!sent) return end_unmoved(call, sender);
  if (group.tail.counts_lost() != 0) return false;
  if (group.too_many()) return true;
  const uint32_t movers = call.params.movers;
  clear_padding(group, warp::index(), movers);
  bool going = await_places(call);
  if (going) {
    const throughput::StagePlan& plan = call.params.plan;
    const uint32_t first = warp::index() * plan.stages;
    const SpreadRing ring{.full = call.shared.full + first,
                          .stages = call.tail.stages() + size_t{first} * plan.stage_bytes,
                          .plan = plan,
                          .next = sender.position()};
    ArrivedRows supply(call, group);
    going = RowSpreader<ArrivedRows>(group.rows, ring, call.deadline, supply).spread_all();
  }
  bulk::wait<0>();  // Completes the padding's stores even if no row was stored.
  warp::sync();
  if (thread::index() == 0) note(call.params.call, call.shared.call, Moment::spread);
  return going;
}

/// Marks the slots of places that receive no row, if the number of places is fixed.
TOKENYARD_DEVICE void mark_absent_rows(const Dispatch& call, const Group& group) {
  const uint32_t rank = call.params.call.rank, rows = call.tail.rows_on()[rank];
  const uint32_t places = call.ready_words().places(rank, rows);
  auto* const slots = group.rows.at<int32_t>(group.rows.layout.slots_at());
  const ThreadGroup thread_group = call.others();
  for (size_t i = size_t{rows} * group.rows.topk + size_t{block::index()} * thread_group.size +
                  thread_group.index;
       i < size_t{places} * group.rows.topk; i += size_t{grid::blocks()} * thread_group.size)
    slots[i] = -1;
}

/// Sends metadata and assigns rows their places by expert. Called by all warps that move no rows.
/// Returns false if the call has failed.
TOKENYARD_DEVICE bool guide_rows(const Dispatch& call, const Group& group) {
  const ThreadGroup thread_group = call.others();
  const uint32_t first = call.first_other();
  count_rows_of_experts(call, group);
  if (warp::index() == first) {
    find_offsets(group);
    find_rows(call, group);
  }
  // The barriers below pass the first warp's results to the other warps.
  NamedBarrier(ByExpertBarrier::experts_known).arrive(block::threads());
  if (group.tail.counts_lost() != 0) return false;
  if (call.params.awaited && block::index() == 0 && warp::index() == call.last_other())
    report_counts(call);
  send_metadata(call);
  send_scales(call, call.tail.rows_on());
  throughput::mark_padding(call);
  NamedBarrier(throughput::DispatchBarrier::counted).sync(thread_group.size);
  publish_of_metadata(call);
  if (thread_group.index == 0) note(call.params.call, call.shared.call, Moment::published);
  if (group.too_many()) return true;
  if (!place_rows(call, group)) return false;
  if (thread_group.index == 0) note(call.params.call, call.shared.call, Moment::placed);
  const uint32_t warp = warp::index() - first, warps = group.tail.placers;
  copy_scales(group, {group.tail.range()[0], group.tail.range()[1]}, warp, warps);
  mark_padding(group, warp, warps);
  mark_absent_rows(call, group);
  if (block::index() == 0) write_offsets(group, thread_group);
  return true;
}

/// Does this warp's part; returns false if this warp knows that the call has failed. Called by the
/// whole block.
TOKENYARD_DEVICE bool bring_rows(const ByExpertParams& params, const Dispatch& call,
                                 const GroupTail& tail, Sender& sender, bool routed) {
  if (!routed) return call.moves_rows() ? end_unmoved(call, sender) : !call.deadline.failed();
  const Grouping rows = grouping_of(params, call);
  const Group group{rows, tail, call.first_other()};
  return call.moves_rows() ? carry_rows(params, call, group, sender) : guide_rows(call, group);
}

/// Called by one thread, after the call has done all that other ranks wait for.
TOKENYARD_DEVICE void refuse_if_too_many(const ByExpertParams& params, const Dispatch& call,
                                         const GroupTail& tail) {
  const uint32_t used = tail.offsets()[tail.local_experts];
  // A host that waits for the counts sees this there, and the object remains usable.
  if (used <= params.layout.rows || call.params.awaited) return;
  call.deadline.fail(Failure::refused, Awaited{.phase = kTooFewPlaces,
                                               .rank = call.params.call.rank,
                                               .expected = used,
                                               .seen = params.layout.rows});
}

TOKENYARD_DEVICE void dispatch_by_expert(const ByExpertParams& params) {
  grid::wait_for_previous();
  const throughput::DispatchParams& dispatch = params.dispatch;
  auto& shared = block::shared<DispatchShared>();
  ByExpertTail tail = ByExpertTail::of(dispatch, block::threads() / kWarpLanes);
  tail.lie_at(block::shared_tail<DispatchShared>());
  const CallDeadline deadline(dispatch.call.wait_context);
  throughput::TokenChoices choices(dispatch, throughput::tokens_of_warp(dispatch));
  ready_shared_memory(dispatch, shared, tail.dispatch);
  ready_group(tail.group);
  if (!begin_call(dispatch.call, shared.call, deadline)) return;

  const uint32_t epoch = shared.call.epoch, route_epoch = shared.call.route_epoch;
  Sender sender(dispatch, shared, tail.dispatch);
  const Dispatch call{dispatch, shared, tail.dispatch, deadline, epoch, route_epoch};
  const bool sound = call.moves_rows() ? open_dispatch(call, sender) : count(call, choices);
  const bool known = !block::any(!sound);
  if (thread::index() == 0) note(dispatch.call, shared.call, Moment::known);
  // By a thread that no other waits for.
  if (thread::index() + 1 == block::threads()) pass_epoch(dispatch.call, epoch);

  const bool routed = known && find_routes(call, choices.tokens());
  if (routed && warp::index() == 0) find_places(call);
  block::sync();
  // A block that has not done its part must not signal that it has finished.
  if (block::any(!bring_rows(params, call, tail.group, sender, routed))) return;
  say_finished(dispatch.call, shared.call, ThreadGroup::of_block());
  if (block::index() == 0 && routed) keep_counts(call, {});
  end_call(dispatch.call, shared.call, call.ready_words(), tail.dispatch.waits(), deadline,
           throughput::Phase::dispatch_arrivals, throughput::Unwatched{});
  if (block::index() == 0 && thread::index() == 0) refuse_if_too_many(params, call, tail.group);
}

TOKENYARD_DEFINE_KERNEL(dispatch_by_expert_kernel, dispatch_by_expert, ByExpertParams,
                        DispatchShared, throughput::kDispatchThreadsMax)

}  // namespace tokenyard::expert_major
