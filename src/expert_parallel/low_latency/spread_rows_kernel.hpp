/// The receiving blocks of a dispatch: each piece from staging to the rows of its experts.
#pragma once

#include "expert_parallel/low_latency/slots_kernel.hpp"
#include "expert_parallel/low_latency/take_kernel.hpp"

namespace tokenyard::low_latency {

/// A lane's pick of a row.
struct PickedSlot {
  int32_t slot;  ///< local expert * slots + slot, or -1

  DEVICE static PickedSlot of(const Dispatch& call, uint32_t row, uint32_t source, uint32_t token) {
    const uint32_t lane = warp::lane();
    if (lane >= call.params.topk || call.shared.absent[source] != 0) return {-1};
    const uint32_t expert = call.tail.ids(row)[lane];
    if (expert == PackedIds::kNone) return {-1};
    return {
        static_cast<int32_t>(expert * call.params.slots() + slot_of(call, expert, source, token))};
  }
};

/// By all lanes: what combine, and whoever looks at the rows, must know of one.
DEVICE void note_row(const Dispatch& call, uint32_t source, uint32_t token, PickedSlot pick) {
  const DispatchParams& params = call.params;
  // An expert picked twice has one row.
  const bool leads = (warp::match(static_cast<uint32_t>(pick.slot)) & lanes_below()) == 0;
  if (warp::lane() >= params.topk) return;
  params.out.row_slot[(size_t{source} * params.tokens_max + token) * params.topk + warp::lane()] =
      pick.slot;
  if (pick.slot >= 0 && leads) params.out.source[pick.slot] = static_cast<int32_t>(token);
}

/// By one lane: the words of a scale piece into an expert's columns.
DEVICE void store_scales(const DispatchParams& params, uint32_t slot, uint32_t piece,
                         const Bytes16& scales) {
  const uint32_t slots = params.slots(), words = params.row.scale_words();
  uint32_t* const column = params.out.scales + size_t{slot / slots} * words * slots + slot % slots;
  if (params.row.scales_packed()) {
    column[size_t{piece} * slots] = scales.word[1];
    return;
  }
  for (uint32_t i = 0; i < kScalesAPiece; ++i)
    if (const uint32_t group = piece * kScalesAPiece + i; group < words)
      column[size_t{group} * slots] = scales.word[i];
}

/// By all lanes: a unit of a row to each of its experts' rows.
DEVICE void spread_unit(const Dispatch& call, uint32_t unit, uint32_t source, uint32_t token,
                        PickedSlot pick) {
  const DispatchParams& params = call.params;
  const uint32_t live = warp::ballot(pick.slot >= 0);
  if (live == 0) return;
  const uint32_t lane = warp::lane(), at = params.row.piece(unit, lane);
  const bool has_piece = params.row.has_piece(unit, lane);
  const Peer<Bytes16> staged =
      params.call.windows.row(params.call.rank, call.call.parity(), source, token) + at;
  const Bytes16 piece =
      has_piece ? take(call.call, Phase::dispatch_rows, source, staged) : Bytes16{};
  for (uint32_t left = live; left != 0; left &= left - 1) {
    const auto slot = static_cast<uint32_t>(warp::shuffle(pick.slot, first_bit(left)));
    if (!has_piece) continue;
    if (unit >= params.row.data_units())
      store_scales(params, slot, at - params.row.first_scale_piece(), piece);
    else
      store_vector(
          reinterpret_cast<Bytes16*>(params.out.x) + size_t{slot} * params.row.data_pieces() + at,
          piece);
  }
}

/// By the whole block: its share of what is told of the experts.
DEVICE void tell_counts(const Dispatch& call, const OwnRows& own) {
  const DispatchParams& params = call.params;
  const DispatchTail& tail = call.tail;
  for (uint32_t expert = own.first + thread::index() * own.stride; expert < tail.local_experts;
       expert += block::threads() * own.stride) {
    const uint32_t* const begins = tail.begins(expert);
    for (uint32_t source = 0; source < tail.ranks; ++source)
      params.out.ranges[expert * tail.ranks + source] = {
          static_cast<int32_t>(begins[source]),
          static_cast<int32_t>(begins[source + 1] - begins[source])};
    const auto count = static_cast<int32_t>(begins[tail.ranks]);
    params.out.counts[expert] = count;
    if (params.out.rows_total != nullptr) params.out.rows_total[expert] += count;
  }
  if (own.first != 0) return;
  for (uint32_t source = thread::index(); source < tail.ranks; source += block::threads()) {
    if (params.out.waited != nullptr) params.out.waited[source] += call.shared.waited[source];
    // For the next dispatch, which no block of this one serves.
    params.call.workspace->verdicts[call.call.parity() ^ 1][source] =
        static_cast<uint32_t>(Verdict::open);
  }
}

/// By a whole receiving block.
DEVICE void receive_dispatch(const Dispatch& call) {
  const DispatchParams& params = call.params;
  const OwnRows own = OwnRows::of_block(params);
  find_slots(call, own);
  tell_counts(call, own);
  // A row's units, and one for what is noted of it.
  const uint32_t jobs = params.row.units() + 1;
  for (uint32_t job = warp::index(); job < own.count * jobs; job += warp::count()) {
    const uint32_t row = job / jobs, unit = job % jobs;
    const uint32_t source = own.source(params, row), token = own.token(params, row);
    const PickedSlot pick = PickedSlot::of(call, row, source, token);
    if (unit == params.row.units())
      note_row(call, source, token, pick);
    else
      spread_unit(call, unit, source, token, pick);
  }
}

}  // namespace tokenyard::low_latency
