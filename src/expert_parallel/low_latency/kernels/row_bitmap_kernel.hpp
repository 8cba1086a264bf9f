/// The destinations of rows, computed by every receiving block for itself while rows are in flight:
/// a bitmap of (local expert, source, token), and counts of its bits. An ids word is accepted only
/// with this dispatch's stamp.
#pragma once

#include "expert_parallel/low_latency/kernels/send_rows_kernel.hpp"

namespace tokenyard::low_latency {

/// A token of a rank.
struct SourceToken {
  uint32_t source, token;
};

/// The tokens that a receiving block spreads, in the order in which senders send: token 0 of every
/// rank, then token 1, ...
struct OwnRows {
  uint32_t first, stride, count;

  TOKENYARD_DEVICE static OwnRows of_block(const DispatchParams& params) {
    const uint32_t senders = sends(params.call.part) ? params.call.send_blocks : 0;
    const Divisor& blocks = params.by.receive_blocks;
    const uint32_t first = block::index() - senders, stride = blocks.divisor;
    const uint32_t rows = params.slots();
    return {first, stride, first < rows ? blocks.quotient(rows - first + stride - 1) : 0};
  }
  TOKENYARD_DEVICE SourceToken at(const DispatchParams& params, uint32_t row) const {
    const uint32_t ranks = params.call.ranks, position = first + row * stride;
    const uint32_t token = params.by.ranks.quotient(position);
    const uint32_t source = position - token * ranks + params.call.rank;
    return {source < ranks ? source : source - ranks, token};
  }
  /// Returns whether the block owns a token, and sets its row.
  TOKENYARD_DEVICE bool owns(const DispatchParams& params, SourceToken of, uint32_t& row) const {
    const uint32_t ranks = params.call.ranks, self = params.call.rank;
    const uint32_t turn = of.source >= self ? of.source - self : of.source + ranks - self;
    const uint32_t position = of.token * ranks + turn;
    row = params.by.receive_blocks.quotient(position);
    return params.by.receive_blocks.remainder(position, row) == first;
  }
};

/// Called by the whole block, before it synchronizes.
TOKENYARD_DEVICE void empty_tables(const Dispatch& call) {
  const DispatchTail& tail = call.tail;
  TOKENYARD_KEEP_ROLLED for (uint32_t i = thread::index(); i < tail.bitmap_words();
                             i += block::threads()) tail.bitmap()[i] = 0;
  for (uint32_t source = thread::index(); source < tail.ranks; source += block::threads()) {
    call.tail.lacks()[source] = 0;
    call.tail.waited()[source] = 0;
  }
  TOKENYARD_KEEP_ROLLED for (uint32_t i = thread::index(); i < tail.rows_a_block * tail.topk;
                             i += block::threads()) tail.ids(0)[i] = PackedIds::kNone;
}

/// Enters a thread's share of eight choices of a token into the bitmap and, if the block owns the
/// row, into its table. In small calls several threads share an ids word, since eight choices take
/// one long.
TOKENYARD_DEVICE void note_ids(const Dispatch& call, const OwnRows& own, SourceToken of,
                               uint32_t first, const PackedIds& packed, uint32_t share) {
  const uint32_t places = std::min(call.params.topk - first, uint32_t{PackedIds::kIds});
  uint32_t row = 0;
  const bool is_own = own.owns(call.params, of, row);
  TOKENYARD_KEEP_ROLLED for (uint32_t place = share; place < places;
                             place += 1u << call.params.ids_shift) {
    const uint32_t expert = packed.get(place);
    if (is_own) call.tail.ids(row)[first + place] = static_cast<uint16_t>(expert);
    if (expert != PackedIds::kNone)
      fetch_or<Order::relaxed, Scope::block>(call.tail.bits(expert, of.source) + of.token / 32,
                                             1u << of.token % 32);
  }
}

/// Returns whether another block has found a source present of which this block lacks ids.
TOKENYARD_DEVICE bool must_read_again(const Dispatch& call, uint32_t source) {
  if (call.tail.absent()[source] != 0) return false;
  return call.tail.lacks()[source] != 0 || !call.call.open(source);
}

/// Reads all sources' ids; returns whether this thread lacks some. Called by the whole block, which
/// must synchronize afterwards. `again`: after the verdicts; the ids read then were seen by another
/// block, so they arrive even if the source is masked. Those waits are in the name of this rank,
/// which is never masked.
TOKENYARD_DEVICE bool read_ids(const Dispatch& call, const OwnRows& own, bool again) {
  const DispatchParams& params = call.params;
  const CallParams& common = params.call;
  const auto begin = static_cast<uint32_t>(cycles());
  const Divisor& ids_a_source = params.by.ids_a_source;
  const Peer<Bytes16> all = common.windows.ids_here(call.call.parity());
  const IdsStamp awaited = stamp_of(call);
  const uint32_t shift = params.ids_shift, shares = common.ranks * ids_a_source.divisor << shift;
  bool lacking = false;
  TOKENYARD_KEEP_ROLLED for (uint32_t at = thread::index(); at < shares; at += block::threads()) {
    const uint32_t i = at >> shift, source = ids_a_source.quotient(i);
    if (again ? !must_read_again(call, source) : !call.call.open(source)) continue;
    PackedIds packed;
    const bool come = call.call.await(
        Phase::dispatch_ids, again ? common.rank : source, awaited.word,
        [&](uint64_t& seen) {
          // Relaxed: the word releases no other data.
          packed.piece = load<Order::relaxed, Scope::sys>(all + i);
          seen = packed.stamp().word;
          return packed.stamp() == awaited;
        },
        [&](uint64_t seen) {
          const IdsStamp stamp{static_cast<uint32_t>(seen)};
          return Difference{.found = awaited.differs_in_format(stamp),
                            .phase = Phase::rows_format,
                            .expected = awaited.format(),
                            .seen = stamp.format()};
        });
    const auto [token, first] = IdsPlace::of(ids_a_source.remainder(i, source), params.topk);
    if (come)
      note_ids(call, own, {source, token}, first, packed, at - (i << shift));
    else if (!again)
      store<Order::relaxed, Scope::block>(&call.tail.lacks()[source], 1);
    lacking |= !come;
    if (params.out.waited != nullptr && !again)
      fetch_max<Order::relaxed, Scope::block>(&call.tail.waited()[source],
                                              static_cast<uint32_t>(cycles()) - begin);
  }
  return lacking;
}

/// Returns whether this block has all ids of a source.
TOKENYARD_DEVICE bool is_complete(const Dispatch& call, uint32_t source) {
  return call.call.open(source) && call.tail.lacks()[source] == 0;
}

/// This block's proposal for the verdict on a source, and the verdict found. One thread per source;
/// threads beyond the ranks have none.
struct Proposal {
  uint32_t source;
  Verdict mine, before;

  /// Must follow read_ids. The atomic's result is still in flight: its first use waits for it.
  TOKENYARD_DEVICE static Proposal make(const Dispatch& call, uint32_t source) {
    const Verdict mine = is_complete(call, source) ? Verdict::present : Verdict::absent;
    const CallParams& common = call.params.call;
    uint32_t* const word = common.workspace->verdict(common.ranks, call.call.parity(), source);
    // Relaxed: a block that learns `present` waits for the ids themselves, which the decider has
    // seen.
    const uint32_t before = compare_exchange<Order::relaxed, Scope::gpu>(
        word, static_cast<uint32_t>(Verdict::open), static_cast<uint32_t>(mine));
    return {source, mine, static_cast<Verdict>(before)};
  }
  TOKENYARD_DEVICE Verdict verdict() const { return before == Verdict::open ? mine : before; }
};

/// Returns whether a source takes part, by this block's view or by the verdicts.
TOKENYARD_DEVICE bool takes_part(const Dispatch& call, uint32_t source, bool by_verdict) {
  return by_verdict ? call.tail.absent()[source] == 0 : is_complete(call, source);
}

/// Removes tokens of sources that take no part; then the bitmap is final. Called by the whole
/// block, which has synchronized and does so again.
TOKENYARD_DEVICE void erase_absent(const Dispatch& call, bool by_verdicts) {
  const DispatchTail& tail = call.tail;
  TOKENYARD_KEEP_ROLLED for (uint32_t i = thread::index(); i < tail.local_experts * tail.ranks;
                             i += block::threads()) {
    const uint32_t expert = call.params.by.ranks.quotient(i);
    const uint32_t source = call.params.by.ranks.remainder(i, expert);
    if (takes_part(call, source, by_verdicts)) continue;
    TOKENYARD_KEEP_ROLLED for (uint32_t word = 0; word < tail.words; ++word)
        tail.bits(expert, source)[word] = 0;
  }
  block::sync();
}

/// Returns term(0) + ... + term(count - 1), evaluating a few terms at a time.
template <class Term>
TOKENYARD_DEVICE uint32_t sum_of(uint32_t count, Term term) {
  constexpr uint32_t kAtOnce = 4;
  uint32_t sum = 0;
  TOKENYARD_KEEP_ROLLED for (uint32_t first = 0; first < count; first += kAtOnce) {
    TOKENYARD_UNROLL for (uint32_t i = 0; i < kAtOnce; ++i) if (first + i < count) sum +=
        term(first + i);
  }
  return sum;
}

/// Returns the number of set bits in some of an expert's words.
TOKENYARD_DEVICE uint32_t bits_of(const uint32_t* words, uint32_t count) {
  return sum_of(count, [&](uint32_t word) { return population(words[word]); });
}

/// Counts the rows per expert and source. Called by the whole block, which must synchronize
/// afterwards. If words are few, bits are counted where a count is needed instead.
TOKENYARD_DEVICE void count_rows(const Dispatch& call) {
  const DispatchTail& tail = call.tail;
  TOKENYARD_KEEP_ROLLED for (uint32_t i = thread::index(); i < tail.local_experts * tail.ranks;
                             i += block::threads()) {
    const uint32_t expert = call.params.by.ranks.quotient(i);
    const uint32_t source = call.params.by.ranks.remainder(i, expert);
    tail.rows(expert)[source] = bits_of(tail.bits(expert, source), tail.words);
  }
}

/// Returns the rows that a source has for an expert.
TOKENYARD_DEVICE uint32_t rows_of(const Dispatch& call, uint32_t expert, uint32_t source) {
  const DispatchTail& tail = call.tail;
  return tail.counts ? tail.rows(expert)[source] : bits_of(tail.bits(expert, source), tail.words);
}

/// Returns the slot of a source's token among an expert's rows, or -1 if it has none there.
TOKENYARD_DEVICE int32_t slot_of(const Dispatch& call, uint32_t expert, SourceToken of) {
  const DispatchTail& tail = call.tail;
  const uint32_t* const own = tail.bits(expert, of.source) + of.token / 32;
  const uint32_t* from = tail.bits(expert, 0);
  const uint32_t bits = *own, bit = 1u << of.token % 32;
  if ((bits & bit) == 0) return -1;
  uint32_t slot = population(bits & (bit - 1));
  if (tail.counts) {
    const uint32_t* const rows = tail.rows(expert);
    slot += sum_of(of.source, [&](uint32_t source) { return rows[source]; });
    from = tail.bits(expert, of.source);
  }
  slot += bits_of(from, static_cast<uint32_t>(own - from));
  return static_cast<int32_t>(expert * call.params.slots() + slot);
}

/// Finds the destinations of the block's own rows, once per row rather than in each warp that moves
/// its units. Called by the whole block. `first`: the token of this thread's first choice, if it
/// has one.
TOKENYARD_DEVICE void find_slots(const Dispatch& call, const OwnRows& own, SourceToken first) {
  const DispatchTail& tail = call.tail;
  TOKENYARD_KEEP_ROLLED for (uint32_t i = thread::index(); i < own.count * tail.topk;
                             i += block::threads()) {
    const uint32_t expert = tail.ids(0)[i];
    int32_t slot = -1;
    if (expert != PackedIds::kNone)
      slot = slot_of(
          call, expert,
          i == thread::index() ? first : own.at(call.params, call.params.by.topk.quotient(i)));
    tail.slots(0)[i] = slot;
  }
}

}  // namespace tokenyard::low_latency
