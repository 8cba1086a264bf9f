/// Sends scales: too few bytes per row for bulk copies, so threads copy them, many rows at a time.
#pragma once

#include "expert_parallel/throughput/kernels/metadata_kernel.hpp"

namespace tokenyard::throughput {

/// Returns whether scales move in pieces of 16 bytes: row order, whole pieces per row, aligned
/// source.
TOKENYARD_DEVICE bool scales_come_in_pieces(const DispatchParams& params) {
  return params.call.scales.order() == ScaleOrder::rows && params.call.scales.words() % 4 == 0 &&
         reinterpret_cast<uintptr_t>(params.scales) % sizeof(Bytes16) == 0;
}

/// Calls `body(rank, row)` for each rank that the token went to.
template <class Body>
TOKENYARD_DEVICE void for_each_row_of(const DispatchParams& params, uint32_t token, Body body) {
  for (uint32_t rank = 0; rank < params.call.ranks; ++rank) {
    const int32_t row = params.route[size_t{token} * params.call.ranks + rank];
    if (row >= 0) body(rank, static_cast<uint32_t>(row));
  }
}

/// Copies pieces; neighbouring threads take neighbouring pieces of a row.
TOKENYARD_DEVICE void send_scale_pieces(const Dispatch& call, ThreadGroup thread_group) {
  const DispatchParams& params = call.params;
  const TokenRange tokens = tokens_of_block(params, block::index());
  const uint32_t pieces = params.call.scales.words() / 4;
  const auto* const scales = reinterpret_cast<const Bytes16*>(params.scales);
  for (uint32_t i = thread_group.index; i < (tokens.end - tokens.begin) * pieces;
       i += thread_group.size) {
    const uint32_t token = tokens.begin + i / pieces, piece = i % pieces;
    const Bytes16 value = load_vector<Cache::read_only>(scales + size_t{token} * pieces + piece);
    for_each_row_of(params, token, [&](uint32_t rank, uint32_t row) {
      const size_t at = size_t{row} * pieces + piece;
      store_vector(place_on<Bytes16>(call, Place::scales, rank) + static_cast<std::ptrdiff_t>(at),
                   value);
    });
  }
}

/// Copies words; neighbouring threads take neighbouring words in the receiver's order.
TOKENYARD_DEVICE void send_scale_words(const Dispatch& call, const uint32_t* rows_on,
                                       ThreadGroup thread_group) {
  const DispatchParams& params = call.params;
  const TokenRange tokens = tokens_of_block(params, block::index());
  const uint32_t words = params.call.scales.words(), count = tokens.end - tokens.begin;
  const bool by_rows = params.call.scales.order() == ScaleOrder::rows;
  const auto* const scales = reinterpret_cast<const uint32_t*>(params.scales);
  for (uint32_t i = thread_group.index; i < count * words; i += thread_group.size) {
    const uint32_t token = tokens.begin + (by_rows ? i / words : i % count);
    const uint32_t word = by_rows ? i % words : i / count;
    const uint32_t value = load_cached(scales + size_t{token} * words + word);
    for_each_row_of(params, token, [&](uint32_t rank, uint32_t row) {
      const ReceivedLayout layout = params.received(call.ready_words().places(rank, rows_on[rank]));
      // Weak: the release of `finished` publishes them.
      store<Order::weak, Scope::sys>(place_on<uint32_t>(call, Place::scales, rank) +
                                         static_cast<std::ptrdiff_t>(layout.scale_index(row, word)),
                                     value);
    });
  }
}

/// Called by all warps that move no rows, once the block knows its tokens' rows. `rows_on`:
/// [ranks].
TOKENYARD_DEVICE void send_scales(const Dispatch& call, const uint32_t* rows_on) {
  if (call.params.call.scales.words() == 0) return;
  if (scales_come_in_pieces(call.params))
    send_scale_pieces(call, call.others());
  else
    send_scale_words(call, rows_on, call.others());
}

}  // namespace tokenyard::throughput
