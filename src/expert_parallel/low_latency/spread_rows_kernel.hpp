/// The receiving blocks of a dispatch: each piece from staging to the rows of its experts.
#pragma once

#include "expert_parallel/low_latency/slots_kernel.hpp"
#include "expert_parallel/low_latency/take_kernel.hpp"

namespace tokenyard::low_latency {

/// What a warp does at once: a unit of a row, or noting the row.
struct SpreadJob {
  uint32_t row, unit;
  SourceToken of;        ///< if the block has that row
  Peer<Bytes16> staged;  ///< this lane's piece of the unit, if there is one
  bool has_piece;

  DEVICE static SpreadJob first(const Dispatch& call, const OwnRows& own) {
    const Divisor& jobs = call.params.by.jobs_a_row;
    SpreadJob job{};
    job.row = jobs.quotient(warp::index());
    job.unit = jobs.remainder(warp::index(), job.row);
    job.find(call, own);
    return job;
  }
  /// Found before it is needed, and not again.
  DEVICE void settle() {
    row = settled(row);
    unit = settled(unit);
    of = {settled(of.source), settled(of.token)};
    staged = settled(staged);
  }
  /// False: there is none left.
  DEVICE bool advance(const Dispatch& call, const OwnRows& own) {
    unit += warp::count();
    for (const uint32_t jobs = call.params.by.jobs_a_row.divisor; unit >= jobs; unit -= jobs) ++row;
    if (row >= own.count) return false;
    find(call, own);
    return true;
  }
  DEVICE bool notes(const Dispatch& call) const { return unit == call.params.row.units(); }
  /// A look at the piece before it is known whether anybody wants it: what it takes from memory
  /// comes while something else is done. Empty: it has not come yet, or there is none.
  DEVICE Bytes16 glance() const {
    // Relaxed: sixteen bytes are their own flag.
    return has_piece ? load<Order::relaxed, Scope::sys>(staged) : empty_piece();
  }

 private:
  DEVICE void find(const Dispatch& call, const OwnRows& own) {
    const DispatchParams& params = call.params;
    of = own.at(params, row);
    has_piece = row < own.count && !notes(call) && params.row.has_piece(unit, warp::lane());
    staged = params.call.windows.row_here(call.call.parity(), of.source, of.token) +
             params.row.piece(unit, warp::lane());
  }
};

/// Where a row goes by this lane's pick, or -1.
DEVICE int32_t picked_slot(const Dispatch& call, uint32_t row) {
  return warp::lane() < call.params.topk ? call.tail.slots(row)[warp::lane()] : -1;
}

/// By all lanes: what combine, and whoever looks at the rows, must know of one.
DEVICE void note_row(const Dispatch& call, SourceToken of, int32_t slot) {
  const DispatchParams& params = call.params;
  // An expert picked twice has one row.
  const bool leads = (warp::match(static_cast<uint32_t>(slot)) & lanes_below()) == 0;
  if (warp::lane() >= params.topk) return;
  const size_t token = size_t{of.source} * params.tokens_max + of.token;
  params.out.row_slot[token * params.topk + warp::lane()] = slot;
  if (slot >= 0 && leads) params.out.source[slot] = static_cast<int32_t>(of.token);
}

/// The words of a scale piece, by one lane: what they have in common in the columns of all experts
/// is found once.
class ScaleWords {
 public:
  DEVICE ScaleWords(const DispatchParams& params, uint32_t piece, const Bytes16& scales)
      : params_(params), scales_(scales) {
    const uint32_t slots = params.by.slots.divisor, words = params.row.scale_words();
    const bool packed = params.row.scales_packed();
    if (packed) scales_.word[0] = scales.word[1];
    const uint32_t first = packed ? piece : piece * kScalesAPiece;
    count_ = packed ? 1 : std::min(words - first, uint32_t{kScalesAPiece});
    first_ = first * slots;
    between_experts_ = uint64_t{words - 1} * slots;
  }
  DEVICE void store(uint32_t slot) const {
    const uint32_t slots = params_.by.slots.divisor;
    uint32_t* const words =
        params_.out.scales + (params_.by.slots.quotient(slot) * between_experts_ + slot + first_);
    UNROLL for (uint32_t i = 0; i < kScalesAPiece; ++i) if (i < count_) words[size_t{i} * slots] =
        scales_.word[i];
  }

 private:
  const DispatchParams& params_;
  Bytes16 scales_;
  uint32_t count_, first_;
  uint64_t between_experts_;  ///< words that lie between two slots beside their difference
};

/// By all lanes: this lane's piece of a unit, or none. `seen` is what a glance found.
DEVICE Bytes16 take_unit(const Dispatch& call, const SpreadJob& job, const Bytes16& seen) {
  if (!job.has_piece) return Bytes16{};
  return take(call.call, Phase::dispatch_rows, job.of.source, job.staged, seen);
}

/// By all lanes: a unit of a row to each of its experts' rows. `live`: lanes whose pick is here.
DEVICE void spread_unit(const Dispatch& call, const SpreadJob& job, uint32_t live, int32_t slot,
                        const Bytes16& piece) {
  const DispatchParams& params = call.params;
  const uint32_t at = params.row.piece(job.unit, warp::lane());
  const auto each = [&](auto store) {
    KEEP_ROLLED for (uint32_t left = live; left != 0; left &= left - 1) {
      const auto to = static_cast<uint32_t>(warp::shuffle(slot, first_bit(left)));
      if (job.has_piece) store(to);
    }
  };
  if (job.unit >= params.row.data_units()) {
    const ScaleWords scales(params, at - params.row.first_scale_piece(), piece);
    each([&](uint32_t to) { scales.store(to); });
    return;
  }
  auto* const x = reinterpret_cast<Bytes16*>(params.out.x) + at;
  const uint32_t row_pieces = params.row.data_pieces();
  each([&](uint32_t to) { store_vector(x + size_t{to} * row_pieces, piece); });
}

/// By one thread: where an expert's rows of each source lie, and how many there are.
DEVICE void tell_count(const Dispatch& call, uint32_t expert) {
  const DispatchParams& params = call.params;
  RowRange* const ranges = params.out.ranges + size_t{expert} * params.call.ranks;
  int32_t begin = 0;
  KEEP_ROLLED for (uint32_t source = 0; source < params.call.ranks; ++source) {
    const auto count = static_cast<int32_t>(rows_of(call, expert, source));
    ranges[source] = {begin, count};
    begin += count;
  }
  params.out.counts[expert] = begin;
  if (params.out.rows_total != nullptr) params.out.rows_total[expert] += begin;
}

/// By the whole block: its share of what is told of the experts. The last threads begin, since the
/// first have rows to wait for.
DEVICE void tell_counts(const Dispatch& call, const OwnRows& own) {
  const DispatchParams& params = call.params;
  KEEP_ROLLED for (uint32_t expert = own.first + thread_from_last() * own.stride;
                   expert < params.local_experts; expert += block::threads() * own.stride)
      tell_count(call, expert);
}

/// By one block: what the next dispatch, which no block of this one serves, must find.
DEVICE void ready_verdicts(const Dispatch& call) {
  const DispatchParams& params = call.params;
  KEEP_ROLLED for (uint32_t source = thread::index(); source < params.call.ranks;
                   source += block::threads()) {
    if (params.out.waited != nullptr) params.out.waited[source] += call.shared.waited[source];
    params.call.workspace->verdicts[call.call.parity() ^ 1][source] =
        static_cast<uint32_t>(Verdict::open);
  }
}

/// By the whole block, which meets: the verdicts. Whether one differs from what the block held.
DEVICE bool learn(const Dispatch& call, const Proposal& first) {
  bool differs = false;
  KEEP_ROLLED for (uint32_t source = thread::index(); source < call.tail.ranks;
                   source += block::threads()) {
    const Proposal proposal = source == first.source ? first : Proposal::make(call, source);
    call.shared.absent[source] = proposal.verdict() == Verdict::absent;
    differs |= proposal.verdict() != proposal.mine;
  }
  return block::any(differs);
}

/// By a whole receiving block. Until the verdicts are in, the block goes on by what it holds
/// itself, and stores nothing; nearly always that is what they say.
DEVICE void receive_dispatch(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const Look look = Look::first(call.call, false);
  const OwnRows own = OwnRows::of_block(params);
  SpreadJob job = SpreadJob::first(call, own);
  SourceToken of_pick = own.at(params, params.by.topk.quotient(thread::index()));
  empty_tables(call);
  job.settle();
  of_pick = {settled(of_pick.source), settled(of_pick.token)};
  open_call(call.call, look, false, [] {});
  for (bool again = false;; again = true) {
    const bool lacking = read_ids(call, own, again);
    if (block::any(lacking || again)) [[unlikely]]
      erase_absent(call, again);
    Proposal proposal{};
    if (!again && thread::index() < params.call.ranks)
      proposal = Proposal::make(call, thread::index());
    if (call.tail.counts) {
      count_rows(call);
      block::sync();
    }
    find_slots(call, own, of_pick);
    if (again) {
      block::sync();
      break;
    }
    if (!learn(call, proposal)) break;
  }
  Bytes16 seen = job.glance();
  tell_counts(call, own);
  bool more = job.row < own.count;
  KEEP_ROLLED while (more) {
    const SpreadJob now = job;
    const bool notes = now.notes(call);
    const int32_t slot = picked_slot(call, now.row);
    const uint32_t live = warp::ballot(slot >= 0);
    Bytes16 piece{};
    if (!notes && live != 0) piece = take_unit(call, now, seen);
    more = job.advance(call, own);
    if (more) seen = job.glance();
    if (notes)
      note_row(call, now.of, slot);
    else if (live != 0)
      spread_unit(call, now, live, slot, piece);
  }
  if (own.first == 0) ready_verdicts(call);
}

}  // namespace tokenyard::low_latency
