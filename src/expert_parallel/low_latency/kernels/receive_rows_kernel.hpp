/// The receiving blocks of a dispatch: each piece moves from staging to the rows of its experts.
/// Ids decide the slots and a verdict per source (protocol.hpp, 7) makes the blocks agree; a piece
/// is its own flag and its place is emptied by the lane that read it.
#pragma once

#include "expert_parallel/low_latency/kernels/row_bitmap_kernel.hpp"
#include "expert_parallel/low_latency/kernels/take_kernel.hpp"

namespace tokenyard::low_latency {

/// Pieces of a unit that a lane loads: one of data, and in the first lane the unit's scales.
struct UnitPieces {
  Bytes16 data, scales;
};

/// Work of a warp at a time: a unit of a row, or noting the row.
struct SpreadJob {
  uint32_t row, unit;
  SourceToken of;                ///< valid if the block has that row
  Peer<Bytes16> staged, scales;  ///< this lane's pieces of the unit, if any
  bool has_piece, has_scales;

  TOKENYARD_DEVICE static SpreadJob first(const Dispatch& call, const OwnRows& own) {
    const Divisor& jobs = call.params.by.jobs_a_row;
    SpreadJob job{};
    job.row = jobs.quotient(warp::index());
    job.unit = jobs.remainder(warp::index(), job.row);
    job.find(call, own);
    return job;
  }
  /// Keeps the addresses in registers, computed before they are needed and not again.
  TOKENYARD_DEVICE void settle() {
    row = settled(row);
    unit = settled(unit);
    of = {settled(of.source), settled(of.token)};
    staged = settled(staged);
    scales = settled(scales);
  }
  /// Returns false if no job is left.
  TOKENYARD_DEVICE bool advance(const Dispatch& call, const OwnRows& own) {
    unit += warp::count();
    for (const uint32_t jobs = call.params.by.jobs_a_row.divisor; unit >= jobs; unit -= jobs) ++row;
    if (row >= own.count) return false;
    find(call, own);
    return true;
  }
  TOKENYARD_DEVICE bool notes(const Dispatch& call) const {
    return unit == call.params.row.units();
  }
  /// Loads the pieces before it is known whether an expert needs them, so that other work hides the
  /// latency. Empty: not arrived yet, or no piece.
  TOKENYARD_DEVICE UnitPieces glance() const {
    // Relaxed: sixteen bytes are their own flag.
    return {.data = has_piece ? load<Order::relaxed, Scope::sys>(staged) : empty_piece(),
            .scales = has_scales ? load<Order::relaxed, Scope::sys>(scales) : empty_piece()};
  }

 private:
  TOKENYARD_DEVICE void find(const Dispatch& call, const OwnRows& own) {
    const DispatchParams& params = call.params;
    of = own.at(params, row);
    const bool moves = row < own.count && !notes(call);
    const uint32_t piece = params.row.piece(unit, warp::lane());
    has_piece = moves && piece < params.row.data_pieces();
    has_scales = moves && params.row.is_fp8() && warp::lane() == 0;
    const Peer<Bytes16> staged_row =
        params.call.windows.row_here(call.call.parity(), of.source, of.token);
    staged = staged_row + piece;
    scales = staged_row + params.row.scale_piece(unit);
  }
};

/// Returns the destination of a row for this lane's choice, or -1.
TOKENYARD_DEVICE int32_t chosen_slot(const Dispatch& call, uint32_t row) {
  return warp::lane() < call.params.topk ? call.tail.slots(row)[warp::lane()] : -1;
}

/// Stores what combine, and users of the rows, must know of one row. Called by all lanes.
TOKENYARD_DEVICE void note_row(const Dispatch& call, SourceToken of, int32_t slot) {
  const DispatchParams& params = call.params;
  // An expert chosen twice has one row.
  const bool leads = (warp::match(static_cast<uint32_t>(slot)) & lanes_below()) == 0;
  if (warp::lane() >= params.topk) return;
  const size_t token = size_t{of.source} * params.tokens_max + of.token;
  params.out.row_slot[token * params.topk + warp::lane()] = slot;
  if (slot >= 0 && leads) params.out.source[slot] = static_cast<int32_t>(of.token);
}

/// Stores a unit's scales, held by the first lane, to the columns of all experts. Called by all
/// lanes. Each lane stores one word for one expert: they are far apart, and one lane would take
/// long.
TOKENYARD_DEVICE void spread_scales(const Dispatch& call, const SpreadJob& job, int32_t slot,
                                    const Bytes16& held) {
  const DispatchParams& params = call.params;
  const uint32_t slots = params.by.slots.divisor, words = params.row.scale_words();
  const bool packed = params.row.scales_packed();
  const uint32_t place = warp::lane() % kScalesAPiece;
  uint32_t scale = 0;
  TOKENYARD_UNROLL for (uint32_t i = 0; i < kScalesAPiece; ++i) {
    // Packed scales leave out the first word, which is the piece's flag.
    const uint32_t word = warp::shuffle(held.word[i], 0);
    if (i == (packed ? 1 : place)) scale = word;
  }
  const uint32_t at = packed ? job.unit : job.unit * kScalesAPiece + place;
  const bool stores = packed ? place == 0 : at < words;
  constexpr uint32_t kAtOnce = kWarpLanes / kScalesAPiece;
  TOKENYARD_KEEP_ROLLED for (uint32_t first = 0; first < params.topk; first += kAtOnce) {
    const int32_t to = warp::shuffle(slot, first + warp::lane() / kScalesAPiece);
    if (!stores || to < 0) continue;
    const uint32_t expert = params.by.slots.quotient(static_cast<uint32_t>(to));
    // Relaxed: for an expert chosen twice, two lanes store the same value.
    store<Order::relaxed, Scope::gpu>(params.out.scales +
                                          (uint64_t{expert} * (words - 1) + at) * slots +
                                          static_cast<uint32_t>(to),
                                      scale);
  }
}

/// Returns this lane's pieces of a unit, zeros where it has none, and empties their places. Called
/// by all lanes. `seen` is the result of glance(). Waits for data and scales together, which saves
/// a memory latency. Pieces that a masked source did not send count as zeros.
TOKENYARD_DEVICE UnitPieces take_unit(const Dispatch& call, const SpreadJob& job,
                                      const UnitPieces& seen) {
  UnitPieces pieces = seen;
  const auto lacks_data = [&] { return job.has_piece && !has_come(pieces.data); };
  const auto lacks_scales = [&] { return job.has_scales && !has_come(pieces.scales); };
  if (lacks_data() || lacks_scales())
    call.call.await(Phase::dispatch_rows, job.of.source, call.call.epoch(), [&](uint64_t&) {
      // Relaxed: sixteen bytes are their own flag.
      if (lacks_data()) pieces.data = load<Order::relaxed, Scope::sys>(job.staged);
      if (lacks_scales()) pieces.scales = load<Order::relaxed, Scope::sys>(job.scales);
      return !lacks_data() && !lacks_scales();
    });
  warp::sync();  // nvcc shuffles a possibly divergent warp lane by lane.
  return {.data = job.has_piece ? emptied(job.staged, pieces.data) : Bytes16{},
          .scales = job.has_scales ? emptied(job.scales, pieces.scales) : Bytes16{}};
}

/// Stores a unit of a row to each of its experts' rows. Called by all lanes. `live`: lanes whose
/// choice is on this rank.
TOKENYARD_DEVICE void spread_unit(const Dispatch& call, const SpreadJob& job, uint32_t live,
                                  int32_t slot, const UnitPieces& pieces) {
  const DispatchParams& params = call.params;
  auto* const x =
      reinterpret_cast<Bytes16*>(params.out.x) + params.row.piece(job.unit, warp::lane());
  const uint32_t row_pieces = params.row.data_pieces();
  TOKENYARD_KEEP_ROLLED for (uint32_t left = live; left != 0; left &= left - 1) {
    const auto to = static_cast<uint32_t>(warp::shuffle(slot, first_bit(left)));
    if (job.has_piece) store_vector(x + size_t{to} * row_pieces, pieces.data);
  }
  if (params.row.is_fp8()) spread_scales(call, job, slot, pieces.scales);
}

/// Stores an expert's row ranges per source and its total. Called by one thread.
TOKENYARD_DEVICE void publish_count(const Dispatch& call, uint32_t expert) {
  const DispatchParams& params = call.params;
  RowRange* const ranges = params.out.ranges + size_t{expert} * params.call.ranks;
  int32_t begin = 0;
  TOKENYARD_KEEP_ROLLED for (uint32_t source = 0; source < params.call.ranks; ++source) {
    const auto count = static_cast<int32_t>(rows_of(call, expert, source));
    ranges[source] = {begin, count};
    begin += count;
  }
  params.out.counts[expert] = begin;
  if (params.out.rows_total != nullptr) params.out.rows_total[expert] += begin;
}

/// Stores the counts of this block's share of experts. Called by the whole block. Starts with the
/// last threads, since the first have rows to wait for.
TOKENYARD_DEVICE void publish_counts(const Dispatch& call, const OwnRows& own) {
  const DispatchParams& params = call.params;
  TOKENYARD_KEEP_ROLLED for (uint32_t expert = own.first + thread_from_last() * own.stride;
                             expert < params.local_experts; expert += block::threads() * own.stride)
      publish_count(call, expert);
}

/// Resets the verdicts of the next dispatch, which has its own words, and accumulates this
/// dispatch's waits. Called by one block.
TOKENYARD_DEVICE void ready_verdicts(const Dispatch& call) {
  const DispatchParams& params = call.params;
  TOKENYARD_KEEP_ROLLED for (uint32_t source = thread::index(); source < params.call.ranks;
                             source += block::threads()) {
    if (params.out.waited != nullptr) params.out.waited[source] += call.tail.waited()[source];
    *params.call.workspace->verdict(params.call.ranks, call.call.parity() ^ 1, source) =
        static_cast<uint32_t>(Verdict::open);
  }
}

/// Learns the verdicts; returns whether one differs from the block's own proposal. Called by the
/// whole block, which synchronizes.
TOKENYARD_DEVICE bool learn(const Dispatch& call, const Proposal& first) {
  bool differs = false;
  TOKENYARD_KEEP_ROLLED for (uint32_t source = thread_from_last(); source < call.tail.ranks;
                             source += block::threads()) {
    const Proposal proposal = source == first.source ? first : Proposal::make(call, source);
    call.tail.absent()[source] = proposal.verdict() == Verdict::absent;
    differs |= proposal.verdict() != proposal.mine;
  }
  return block::any(differs);
}

/// Called by a whole receiving block. Until the verdicts are in, the block continues on its own
/// proposals, which nearly always match, and stores nothing.
TOKENYARD_DEVICE void receive_dispatch(const DispatchParams& params) {
  const OwnRows own = OwnRows::of_block(params);
  const DispatchTail tail = tail_of(params);
  const Call begun = begin_call(params.call, tail.open(), Kind::dispatch);
  const Dispatch call{params, tail, begun};
  const Look look = Look::first(begun, false);
  SpreadJob job = SpreadJob::first(call, own);
  SourceToken of_choice = own.at(params, params.by.topk.quotient(thread::index()));
  empty_tables(call);
  job.settle();
  of_choice = {settled(of_choice.source), settled(of_choice.token)};
  open_call(call.call, look, false);
  advance_epoch(call.call);  // Here, since the block has to wait anyway.
  for (bool again = false;; again = true) {
    const bool lacking = read_ids(call, own, again);
    if (block::any(lacking || again)) [[unlikely]]
      erase_absent(call, again);
    // By the last threads, since the first find slots meanwhile.
    Proposal proposal{};
    if (!again && thread_from_last() < params.call.ranks)
      proposal = Proposal::make(call, thread_from_last());
    if (call.tail.counts) {
      count_rows(call);
      block::sync();
    }
    find_slots(call, own, of_choice);
    if (again) {
      block::sync();
      break;
    }
    if (!learn(call, proposal)) break;
  }
  UnitPieces seen = job.glance();
  publish_counts(call, own);
  bool more = job.row < own.count;
  TOKENYARD_KEEP_ROLLED while (more) {
    const SpreadJob now = job;
    const bool notes = now.notes(call);
    const int32_t slot = chosen_slot(call, now.row);
    const uint32_t live = warp::ballot(slot >= 0);
    UnitPieces pieces{};
    if (!notes && live != 0) pieces = take_unit(call, now, seen);
    more = job.advance(call, own);
    if (more) seen = job.glance();
    if (notes)
      note_row(call, now.of, slot);
    else if (live != 0)
      spread_unit(call, now, live, slot, pieces);
  }
  if (own.first == 0) ready_verdicts(call);
  close_call(begun);
}

}  // namespace tokenyard::low_latency
