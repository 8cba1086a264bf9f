/// Reports: block 0 publishes the counts, or a refusal, to its host while rows move, and every
/// block keeps the counts that outlive the call. The host waits for the epoch of CountsRecord,
/// whose release covers the rest of the record.
#pragma once

#include "expert_parallel/throughput/kernels/counts_kernel.hpp"

namespace tokenyard::throughput {

/// Returns the experts whose tokens this block adds up. If a host or a readiness watcher waits for
/// the sums, block 0 takes all. Otherwise each block takes some: one block needs 5 us for 4096
/// words (H200), longer than a small call's blocks run, and nothing needs the sums in one place.
TOKENYARD_DEVICE ExpertShare experts_summed(const Dispatch& call) {
  if (!call.params.awaited && call.params.readiness.words == nullptr)
    return {block::index(), grid::blocks()};
  return {block::index() == 0 ? 0 : call.params.local_experts, 1};
}

/// Adds up the tokens of a share of this rank's experts. Called by all warps that move no rows.
TOKENYARD_DEVICE void sum_experts(const Dispatch& call, ExpertShare share) {
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

/// Stores a word of the record. Relaxed: the later release of the record's epoch covers it.
TOKENYARD_DEVICE void publish(uint32_t& word, uint32_t value) {
  store<Order::relaxed, Scope::sys>(&word, value);
}

/// Publishes the record's epoch. Called by one thread, which the writers of the other words have
/// synchronized with. Release: orders those words before the epoch.
TOKENYARD_DEVICE void close_record(const Dispatch& call) {
  // A failed call reports nothing: sums over words that never arrived are not counts.
  if (!call.deadline.failed())
    store<Order::release, Scope::sys>(&call.params.record->epoch, call.epoch);
}

/// Stores what later kernels need of the route, besides tokens per expert.
TOKENYARD_DEVICE void fill_table(const Dispatch& call, ThreadGroup thread_group) {
  const RouteTable& table = call.params.table;
  for (uint32_t rank = thread_group.index; rank < table.ranks; rank += thread_group.size) {
    table.rows_on()[rank] = call.tail.rows_on()[rank];
    table.rows_from()[rank] = call.tail.rows_from()[rank];
  }
  if (thread_group.index == 0) table.epoch() = call.epoch;
}

/// Publishes the counts. Called by one warp of block 0, after sum_experts, only if the host waits:
/// a host that does not wait never reads the record, and could take these counts for a later
/// call's.
TOKENYARD_DEVICE void report_counts(const Dispatch& call) {
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

/// Keeps the counts that outlive the call. Called by a block that no rank waits for any more.
/// Starts with the last thread because the first ones of block 0 wait for other ranks.
TOKENYARD_DEVICE void keep_counts(const Dispatch& call, ExpertShare share) {
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

/// Reports that a rank lacks places for its rows. Called by one thread of block 0.
TOKENYARD_DEVICE void report_overflow(const Dispatch& call) {
  CountsRecord& record = *call.params.record;
  const uint32_t rank = call.shared.full_rank;
  publish(record.refusal, static_cast<uint32_t>(RefusalKind::overflow));
  publish(record.rank, rank);
  publish(record.token, call.ready_words().of(ReadyWord::places, rank));
  publish(record.id_low, call.tail.rows_on()[rank]);
  publish(record.id_high, 0);
}

/// Reports that a rank's row format or scales differ from those of the first present rank. Called
/// by one thread of block 0.
TOKENYARD_DEVICE void report_format(const Dispatch& call) {
  CountsRecord& record = *call.params.record;
  const ReadyWords ready_words = call.ready_words();
  const uint32_t rank = call.shared.differing_rank, first = call.params.call.first_present;
  const ReadyWord word = differing_word(ready_words, first, rank);
  publish(record.refusal, static_cast<uint32_t>(RefusalKind::format));
  publish(record.rank, rank);
  publish(record.token, static_cast<uint32_t>(word));
  publish(record.id_low, ready_words.of(word, rank));
  publish(record.id_high, ready_words.of(word, first));
}

/// Reports a token that no rank can accept. Called by one thread of block 0.
TOKENYARD_DEVICE void report_bad_token(const Dispatch& call) {
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

/// Reports why there will be no rows. Called by one thread of block 0. If no host waits for the
/// counts, the object fails: nothing else could stop the calls enqueued after this one.
TOKENYARD_DEVICE void report_refusal(const Dispatch& call) {
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
