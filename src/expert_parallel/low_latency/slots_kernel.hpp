/// Where rows go, found by every receiving block for itself while they are under way: a bitmap of
/// (local expert, source, token), and counts of its bits.
#pragma once

#include "expert_parallel/low_latency/send_rows_kernel.hpp"

namespace tokenyard::low_latency {

/// The (source, token) pairs that a receiving block spreads, in the order in which senders send:
/// everybody's token 0, everybody's token 1, ...
struct OwnRows {
  uint32_t first, stride, count;

  DEVICE static OwnRows of_block(const DispatchParams& params) {
    const uint32_t senders = receives_only(params) ? 0 : params.call.send_blocks;
    const uint32_t first = block::index() - senders, stride = grid::blocks() - senders;
    const uint32_t rows = params.slots();
    return {first, stride, first < rows ? (rows - first + stride - 1) / stride : 0};
  }
  DEVICE static bool receives_only(const DispatchParams& params) {
    return params.call.part == Part::receive;
  }
  DEVICE uint32_t source(const DispatchParams& params, uint32_t row) const {
    return (position(row) + params.call.rank) % params.call.ranks;
  }
  DEVICE uint32_t token(const DispatchParams& params, uint32_t row) const {
    return position(row) / params.call.ranks;
  }
  DEVICE uint32_t position(uint32_t row) const { return first + row * stride; }
  /// Whether a pair is one of the block's own; its row then.
  DEVICE bool owns(const DispatchParams& params, uint32_t source, uint32_t token,
                   uint32_t& row) const {
    const uint32_t ranks = params.call.ranks;
    const uint32_t position = token * ranks + (source + ranks - params.call.rank) % ranks;
    if (position % stride != first) return false;
    row = (position - first) / stride;
    return true;
  }
};

/// One thread's look at what a source's token wants: into the bitmap, and into the block's table if
/// the row is its own.
DEVICE void note_ids(const Dispatch& call, const OwnRows& own, uint32_t source, uint32_t token,
                     uint32_t atom, const PackedIds& packed) {
  const uint32_t topk = call.params.topk;
  uint32_t row = 0;
  const bool is_own = own.owns(call.params, source, token, row);
  for (uint32_t place = 0; place < PackedIds::kIds; ++place) {
    const uint32_t pick = atom * PackedIds::kIds + place;
    if (pick >= topk) break;
    const uint32_t expert = packed.get(place);
    if (is_own) call.tail.ids(row)[pick] = static_cast<uint16_t>(expert);
    if (expert != PackedIds::kNone)
      fetch_or<Order::relaxed, Scope::block>(call.tail.bits(expert, source) + token / 32,
                                             1u << token % 32);
  }
}

/// Whether a source is present, as others know, of whom this block lacks some ids.
DEVICE bool must_read_again(const Dispatch& call, uint32_t source) {
  if (call.shared.absent[source] != 0) return false;
  return call.shared.lacks[source] != 0 || !call.call.open(source);
}

/// By the whole block, which then has to meet: everybody's ids. `again`: after the verdict;
/// what is read then is all there.
DEVICE void read_ids(const Dispatch& call, const OwnRows& own, bool again) {
  const DispatchParams& params = call.params;
  const CallParams& common = params.call;
  const uint32_t begin = static_cast<uint32_t>(cycles());
  for (uint32_t i = thread::index(); i < params.slots(); i += block::threads()) {
    const uint32_t source = i / params.tokens_max, token = i % params.tokens_max;
    if (again ? !must_read_again(call, source) : !call.call.open(source)) continue;
    for (uint32_t atom = 0; atom < packed_ids_of(params.topk); ++atom) {
      const Peer<Bytes16> from =
          common.windows.ids(common.rank, call.call.parity(), source, token) + atom;
      PackedIds packed;
      const auto look = [&](uint64_t& seen) {
        // Relaxed: the word itself is all there is to see.
        packed.piece = load<Order::relaxed, Scope::sys>(from);
        seen = packed.epoch();
        return packed.epoch() == call.call.epoch;
      };
      uint64_t seen = 0;
      const bool come =
          again ? look(seen) : call.call.await(Phase::dispatch_ids, source, call.call.epoch, look);
      if (come)
        note_ids(call, own, source, token, atom, packed);
      else
        store<Order::relaxed, Scope::block>(&call.shared.lacks[source], 1);
    }
    if (params.out.waited != nullptr && !again)
      fetch_max<Order::relaxed, Scope::block>(&call.shared.waited[source],
                                              static_cast<uint32_t>(cycles()) - begin);
  }
}

/// By one thread for a source, once the block has read all it could: whether the source takes
/// part. True if that is not what this block thought.
DEVICE bool decide(const Dispatch& call, uint32_t source) {
  const bool complete = call.call.open(source) && call.shared.lacks[source] == 0;
  const Verdict mine = complete ? Verdict::present : Verdict::absent;
  uint32_t* const word = &call.params.call.workspace->verdicts[call.call.parity()][source];
  // Release: who learns that the source is present then finds all its ids, as the decider did.
  const uint32_t before = compare_exchange<Order::release, Scope::gpu>(
      word, static_cast<uint32_t>(Verdict::open), static_cast<uint32_t>(mine));
  const bool decided = before != static_cast<uint32_t>(Verdict::open);
  const auto verdict = decided ? static_cast<Verdict>(before) : mine;
  call.shared.absent[source] = verdict == Verdict::absent;
  if (verdict == mine) return false;
  // The acquire that goes with it, for those who have something to learn.
  fence<Scope::gpu>();
  return true;
}

/// By one thread: an expert's first row of each source.
DEVICE void find_begins(const Dispatch& call, uint32_t expert) {
  const DispatchTail& tail = call.tail;
  uint32_t* const begins = tail.begins(expert);
  uint32_t row = 0;
  for (uint32_t source = 0; source < tail.ranks; ++source) {
    begins[source] = row;
    if (call.shared.absent[source] != 0) continue;
    for (uint32_t word = 0; word < tail.words; ++word)
      row += population(tail.bits(expert, source)[word]);
  }
  begins[tail.ranks] = row;
}

/// The slot of a source's token among an expert's rows.
DEVICE uint32_t slot_of(const Dispatch& call, uint32_t expert, uint32_t source, uint32_t token) {
  const uint32_t* const bits = call.tail.bits(expert, source);
  uint32_t slot = call.tail.begins(expert)[source];
  for (uint32_t word = 0; word < token / 32; ++word) slot += population(bits[word]);
  return slot + population(bits[token / 32] & ((1u << token % 32) - 1));
}

/// By the whole block, which meets: from everybody's ids to slots.
DEVICE void find_slots(const Dispatch& call, const OwnRows& own) {
  const DispatchTail& tail = call.tail;
  for (uint32_t i = thread::index(); i < tail.bitmap_words(); i += block::threads())
    tail.bitmap()[i] = 0;
  for (uint32_t source = thread::index(); source < tail.ranks; source += block::threads()) {
    call.shared.lacks[source] = 0;
    call.shared.waited[source] = 0;
  }
  for (uint32_t i = thread::index(); i < tail.rows_a_block * tail.topk; i += block::threads())
    tail.ids(0)[i] = PackedIds::kNone;
  block::sync();
  read_ids(call, own, false);
  block::sync();
  bool differs = false;
  for (uint32_t source = thread::index(); source < tail.ranks; source += block::threads())
    differs |= decide(call, source);
  if (block::any(differs)) {
    read_ids(call, own, true);
    block::sync();
  }
  for (uint32_t expert = thread::index(); expert < tail.local_experts; expert += block::threads())
    find_begins(call, expert);
  block::sync();
}

}  // namespace tokenyard::low_latency
