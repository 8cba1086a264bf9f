/// Block 0 tells its host the counts, while rows are under way; what of them outlives the call.
#pragma once

#include "expert_parallel/throughput/kernels/counts_kernel.hpp"

namespace tokenyard::throughput {

/// The experts whose tokens a block adds up. Block 0 does it for all where a host or a watcher
/// waits for it; else every block for some, since one needs 5 us for 4096 words (H200), the blocks
/// of a small call end before that, and nobody has to bring the sums together.
DEVICE ExpertShare experts_summed(const Dispatch& call) {
  if (!call.params.awaited && call.params.readiness.words == nullptr)
    return {block::index(), grid::blocks()};
  return {block::index() == 0 ? 0 : call.params.local_experts, 1};
}

/// By all warps that move no rows: adds up the tokens of some of this rank's experts.
DEVICE void sum_experts(const Dispatch& call, ExpertShare share) {
  const CallParams& params = call.params.call;
  const ThreadGroup thread_group = call.others();
  for_each_expert_count(
      call, share, thread_group, [&](uint32_t slot, uint32_t expert, uint32_t tokens) {
        add<Order::relaxed, Scope::block>(call.tail.expert_sums() + expert, tokens);
        if (call.params.readiness.words != nullptr)
          note_named(call.params.readiness, slot / params.control.layout.blocks_max, expert);
      });
  NamedBarrier(DispatchBarrier::experts_summed).sync(thread_group.size);
}

/// A word of the record. Relaxed: the release of its epoch, which comes later, covers it.
DEVICE void publish(uint32_t& word, uint32_t value) {
  store<Order::relaxed, Scope::sys>(&word, value);
}

/// By one thread, after those whose words it closes have synchronised with it.
DEVICE void close_record(const Dispatch& call) {
  // After a failure there is nothing to tell: sums of words that never came are no counts.
  if (!call.deadline.failed())
    store<Order::release, Scope::sys>(&call.params.record->epoch, call.epoch);
}

/// What later kernels must know of the route, beside its experts' tokens.
DEVICE void fill_table(const Dispatch& call, ThreadGroup thread_group) {
  const RouteTable& table = call.params.table;
  for (uint32_t rank = thread_group.index; rank < table.ranks; rank += thread_group.size) {
    table.rows_on()[rank] = call.tail.rows_on()[rank];
    table.rows_from()[rank] = call.tail.rows_from()[rank];
  }
  if (thread_group.index == 0) table.epoch() = call.epoch;
}

/// By one warp of block 0, after sum_experts: the host waits. (Where it does not, it asks for
/// nothing in the record, and might take these counts for those of a later call.)
DEVICE void report_counts(const Dispatch& call) {
  CountsRecord& record = *call.params.record;
  const uint32_t ranks = call.params.call.ranks;
  for (uint32_t rank = warp::lane(); rank < ranks; rank += kWarpLanes)
    publish(record.rows_from()[rank], call.tail.rows_from()[rank]);
  for (uint32_t expert = warp::lane(); expert < call.params.local_experts; expert += kWarpLanes)
    publish(record.tokens_per_expert(ranks)[expert], call.tail.expert_sums()[expert]);
  if (warp::lane() == 0) publish(record.refusal, static_cast<uint32_t>(RefusalKind::none));
  warp::sync();
  if (warp::lane() == 0) close_record(call);
}

/// By a block, when no rank waits for it any more: what outlives the call. Begins with the last
/// thread, since the first ones of block 0 wait for others.
DEVICE void keep_counts(const Dispatch& call, ExpertShare share) {
  const ThreadGroup thread_group{block::threads() - 1 - thread::index(), block::threads()};
  if (block::index() == 0) fill_table(call, thread_group);
  const Statistics& statistics = call.params.call.statistics;
  for (uint32_t expert = share.first + thread_group.index * share.stride;
       expert < call.params.local_experts; expert += thread_group.size * share.stride) {
    const uint32_t tokens = call.tail.expert_sums()[expert];
    call.params.table.tokens_per_expert()[expert] = tokens;
    count_up(statistics, statistics.tokens_of(expert), tokens);
  }
}

/// By one thread of block 0: a rank has no places for its rows.
DEVICE void report_overflow(const Dispatch& call) {
  CountsRecord& record = *call.params.record;
  const uint32_t rank = call.shared.full_rank;
  publish(record.refusal, static_cast<uint32_t>(RefusalKind::overflow));
  publish(record.rank, rank);
  publish(record.token, call.ready_words().of(ReadyWord::places, rank));
  publish(record.id_low, call.tail.rows_on()[rank]);
  publish(record.id_high, 0);
}

/// By one thread of block 0: a rank sends other rows or scales than rank 0.
DEVICE void report_format(const Dispatch& call) {
  CountsRecord& record = *call.params.record;
  const ReadyWords ready_words = call.ready_words();
  const uint32_t rank = call.shared.differing_rank;
  const ReadyWord word = differing_word(ready_words, rank);
  publish(record.refusal, static_cast<uint32_t>(RefusalKind::format));
  publish(record.rank, rank);
  publish(record.token, static_cast<uint32_t>(word));
  publish(record.id_low, ready_words.of(word, rank));
  publish(record.id_high, ready_words.of(word, 0));
}

/// By one thread of block 0: a block has found a token that nobody can accept.
DEVICE void report_bad_token(const Dispatch& call) {
  const Control& control = call.params.call.control;
  const uint32_t blocks_max = control.layout.blocks_max;
  const uint32_t source = call.shared.refusing_block / blocks_max;
  const Peer<Refusal> refusal =
      control.refusal(call.params.call.rank, source, call.shared.refusing_block % blocks_max);
  const auto read = [&](Stamped Refusal::*word) {
    return call.await_word(Phase::dispatch_refusal, source, refusal.at(word)).value;
  };
  const uint32_t token_and_kind = read(&Refusal::token_and_kind);
  CountsRecord& record = *call.params.record;
  publish(record.refusal, token_and_kind & 3);
  publish(record.rank, source);
  publish(record.token, token_and_kind >> 2);
  publish(record.id_low, read(&Refusal::id_low));
  publish(record.id_high, read(&Refusal::id_high));
}

/// By one thread of block 0: why there will be no rows. Where no host awaits the counts, the object
/// fails: nobody could stop the calls that were enqueued after this one.
DEVICE void report_refusal(const Dispatch& call) {
  if (call.shared.differing_rank != kNothingRefused)
    report_format(call);
  else if (call.shared.refusing_block != kNothingRefused)
    report_bad_token(call);
  else
    report_overflow(call);
  close_record(call);
  if (!call.params.awaited)
    call.deadline.fail(Failure::refused,
                       Awaited{.phase = static_cast<uint32_t>(Phase::dispatch_refusal),
                               .rank = call.params.call.rank});
}

}  // namespace tokenyard::throughput
