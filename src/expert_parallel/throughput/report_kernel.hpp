/// Block 0 tells its host the counts, while rows are under way.
#pragma once

#include "expert_parallel/throughput/counts_kernel.hpp"

namespace tokenyard::throughput {

/// By all warps of block 0 but the first: adds up the tokens of this rank's experts.
DEVICE void sum_experts(const Dispatch& call) {
  const CallParams& params = call.params.call;
  const uint32_t local_experts = call.params.local_experts;
  const uint32_t blocks_max = params.control.layout.blocks_max;
  const uint32_t threads = block::threads() - kWarpLanes;
  for (uint32_t i = thread::index() - kWarpLanes; i < params.ranks * blocks_max * local_experts;
       i += threads) {
    const uint32_t slot = i / local_experts, expert = i % local_experts;
    const uint32_t source = slot / blocks_max, source_block = slot % blocks_max;
    if (source_block >= call.hellos().blocks(source)) continue;
    const Stamped tokens =
        call.await_word(Phase::dispatch_experts, source,
                        params.control.expert(params.rank, source, source_block, expert));
    if (tokens.value != 0)
      add<Order::relaxed, Scope::block>(call.tail.expert_sums() + expert, tokens.value);
  }
  NamedBarrier(DispatchBarrier::experts_summed).sync(threads);
}

/// A word of the record. Relaxed: the release of its epoch, which comes later, covers it.
DEVICE void tell(uint32_t& word, uint32_t value) {
  store<Order::relaxed, Scope::sys>(&word, value);
}

/// By one thread, after those whose words it closes have synchronised with it.
DEVICE void close_record(const Dispatch& call) {
  // After a failure there is nothing to tell: sums of words that never came are no counts.
  if (!call.deadline.failed())
    store<Order::release, Scope::sys>(&call.params.record->epoch, call.epoch);
}

/// By all warps of block 0 but the first.
DEVICE void report_counts(const Dispatch& call) {
  sum_experts(call);
  if (warp::index() != 1) return;
  CountsRecord& record = *call.params.record;
  const uint32_t ranks = call.params.call.ranks;
  for (uint32_t rank = warp::lane(); rank < ranks; rank += kWarpLanes)
    tell(record.rows_from()[rank], call.tail.rows_from()[rank]);
  for (uint32_t expert = warp::lane(); expert < call.params.local_experts; expert += kWarpLanes)
    tell(record.tokens_per_expert(ranks)[expert], call.tail.expert_sums()[expert]);
  if (warp::lane() == 0) tell(record.refusal, static_cast<uint32_t>(RefusalKind::none));
  warp::sync();
  if (warp::lane() == 0) close_record(call);
}

/// By one thread of block 0: why there will be no rows.
DEVICE void report_refusal(const Dispatch& call) {
  const Control& control = call.params.call.control;
  const uint32_t blocks_max = control.layout.blocks_max;
  const uint32_t source = call.shared.refusing_block / blocks_max;
  const Peer<Refusal> refusal =
      control.refusal(call.params.call.rank, source, call.shared.refusing_block % blocks_max);
  const auto hear = [&](Stamped Refusal::*word) {
    return call.await_word(Phase::dispatch_refusal, source, refusal.at(word)).value;
  };
  const uint32_t token_and_kind = hear(&Refusal::token_and_kind);
  CountsRecord& record = *call.params.record;
  tell(record.refusal, token_and_kind & 3);
  tell(record.rank, source);
  tell(record.token, token_and_kind >> 2);
  tell(record.id_low, hear(&Refusal::id_low));
  tell(record.id_high, hear(&Refusal::id_high));
  close_record(call);
}

}  // namespace tokenyard::throughput
