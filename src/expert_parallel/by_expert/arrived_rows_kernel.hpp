/// The received rows that a mover spreads: claims of this rank's own rows, which are ready, then of
/// other ranks' rows, rotating over the sources, in the order in which they are sent.
#pragma once

#include <algorithm>

#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/spread_rows_kernel.hpp"
#include "expert_parallel/throughput/kernels/dispatch_shared.hpp"
#include "expert_parallel/throughput/kernels/metadata_kernel.hpp"

namespace tokenyard::expert_major {

/// Used by one warp, whose lanes agree. One claim is always drawn ahead.
class ArrivedRows {
 public:
  /// Must be constructed after all rows have their places.
  TOKENYARD_DEVICE ArrivedRows(const throughput::Dispatch& call, const Group& group)
      : call_(call),
        group_(group),
        received_(call.params.call.arenas.mine() +
                  call.ready_words().rows_at(call.params.call.rank)),
        tokens_(reinterpret_cast<const int32_t*>(
            call.params.call.arenas.mine() +
            size_t{call.tail.places().of(throughput::Place::sources, call.params.call.rank)} *
                throughput::kOffsetUnit)) {
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      if (rank != call.params.call.rank) most_ = std::max(most_, pieces_of(rank));
    draw();
  }

  TOKENYARD_DEVICE bool next(RowToSpread& row) {
    if (next_ == end_ && !claim()) return false;
    row.row = next_++;
    const size_t row_bytes = call_.params.row_bytes;
    if (source_ == call_.params.call.rank) {
      row.from = call_.params.x + static_cast<size_t>(tokens_[row.row]) * row_bytes;
      return true;
    }
    row.from = received_ + size_t{row.row} * row_bytes;
    return await_arrival(row.row);
  }

 private:
  TOKENYARD_DEVICE uint32_t ranks() const { return call_.params.call.ranks; }
  TOKENYARD_DEVICE uint32_t pieces_of(uint32_t source) const {
    return (call_.tail.rows_from()[source] + kRowsAClaim - 1) / kRowsAClaim;
  }

  TOKENYARD_DEVICE bool claim() {
    const uint32_t rank = call_.params.call.rank, own = pieces_of(rank), others = ranks() - 1;
    // Terminates: tickets are distinct and grow.
    while (true) {
      uint32_t drawn = warp::shuffle(ticket_, 0);
      if (drawn >= own + most_ * others) return false;
      draw();
      source_ = rank;
      if (drawn >= own) {
        drawn -= own;
        source_ = rank + 1 + drawn % others;
        if (source_ >= ranks()) source_ -= ranks();
        drawn /= others;
      }
      const uint32_t rows = call_.tail.rows_from()[source_];
      const uint32_t first = std::min(drawn * kRowsAClaim, rows);
      next_ = group_.tail.first_from()[source_] + first;
      end_ = next_ + std::min(rows - first, uint32_t{kRowsAClaim});
      if (next_ < end_) return true;
    }
  }

  TOKENYARD_DEVICE void draw() {
    if (warp::lane() == 0)
      ticket_ = fetch_add<Order::relaxed, Scope::gpu>(
          &call_.params.call.workspace->spreads[call_.epoch & 1], 1);
  }

  /// Waits until a row has arrived. Acquire: orders the row, which its sender's fence released,
  /// before this lane; fence_async then orders it before the bulk copy that the same lane starts.
  TOKENYARD_DEVICE bool await_arrival(uint32_t row) const {
    bool arrived = true;
    if (warp::lane() == 0) {
      Awaited what{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_arrivals),
                   .rank = source_,
                   .expected = call_.epoch};
      const throughput::CallParams& params = call_.params.call;
      arrived = wait_until(call_.deadline, what, [&] {
        what.seen = load<Order::acquire, Scope::sys>(params.control.arrived(params.rank, row));
        return what.seen == what.expected;
      });
      fence_async();
    }
    warp::sync();
    return warp::all(arrived);
  }

  const throughput::Dispatch& call_;
  const Group& group_;
  const std::byte* const received_;  // [rows, row_bytes]
  const int32_t* const tokens_;      // [rows] source token
  uint32_t most_ = 0;                // Most pieces of any other rank.
  uint32_t source_ = 0, next_ = 0, end_ = 0;
  uint32_t ticket_ = 0;  // Lane 0 only.
};

}  // namespace tokenyard::expert_major
