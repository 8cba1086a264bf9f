/// Copies rows to their experts: a mover loads each row once into a stage of its ring and stores it
/// from there to all its places, one lane per choice, in batches of 32. A stage is reloaded only
/// after wait_read proves that its stores have read it.
#pragma once

#include "device/apart.hpp"
#include "expert_parallel/by_expert/grouping_kernel.hpp"
#include "expert_parallel/throughput/kernels/phase.hpp"
#include "expert_parallel/throughput/kernels/ring.hpp"
#include "expert_parallel/throughput/kernels/wait_read_kernel.hpp"

namespace tokenyard::expert_major {

/// A mover's ring, and the position of its next row.
struct SpreadRing {
  Completion* full;   ///< [stages]
  std::byte* stages;  ///< [stages][stage_bytes]
  const throughput::StagePlan& plan;
  throughput::RingPosition next;
};

/// A row to spread; all lanes hold the same.
struct RowToSpread {
  uint32_t row;           ///< index among the received rows
  const std::byte* from;  ///< address to read it from
};

/// The work of one mover. A unit is one segment of one row. `Supply::next(RowToSpread&)`, called by
/// all lanes, finds a row that no other mover gets; false if there is none or the call has failed.
template <class Supply>
class RowSpreader {
 public:
  TOKENYARD_DEVICE RowSpreader(const Grouping& rows, const SpreadRing& ring,
                               const CallDeadline& deadline, Supply& supply)
      : rows_(rows),
        ring_(ring),
        deadline_(deadline),
        supply_(supply),
        loading_(ring.next),
        storing_(ring.next) {}

  /// Spreads all rows; returns once all stores are complete. Returns false if the call has failed;
  /// all loads have landed then.
  TOKENYARD_DEVICE bool spread_all() {
    const throughput::StagePlan& plan = ring_.plan;
    bool more = true;
    while (more && loaded_ < plan.stages) more = load_next();
    int32_t place = place_of_lane();
    bool going = true;
    for (uint32_t stored = 0; stored < loaded_; ++stored) {
      going = await_load();
      if (!going) break;
      store_unit(place);
      if (stored >= plan.lag && more) {
        throughput::wait_read_but(plan.lag);
        warp::sync();
        more = load_next();
      }
      if (stored + 1 < loaded_) place = place_of_lane();  // Loaded while a row is awaited.
    }
    if (!going && warp::lane() == 0) throughput::let_loads_land(ring_.full, loading_, plan.stages);
    const bool failed = deadline_.failed();
    bulk::wait<0>();
    warp::sync();
    return !warp::any(failed);
  }

 private:
  TOKENYARD_DEVICE bool load_next() {
    if (segment_ == 0 && !supply_.next(row_)) return false;
    const throughput::StagePlan& plan = ring_.plan;
    if (warp::lane() == 0) {
      Completion& full = ring_.full[loading_.stage];
      const uint32_t bytes = plan.bytes_of(segment_, rows_.layout.row_bytes);
      full.arrive_expect(bytes);
      bulk::load(ring_.stages + loading_.stage * plan.stage_bytes,
                 row_.from + segment_ * plan.segment_bytes, bytes, full);
    }
    if (warp::lane() == loading_.stage) {
      held_row_ = row_.row;
      held_segment_ = segment_;
    }
    ++loaded_;
    loading_.advance(1, plan.stages);
    if (++segment_ == plan.segments) segment_ = 0;
    return true;
  }

  TOKENYARD_DEVICE bool await_load() const {
    Awaited what{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_load),
                 .rank = 0,
                 .expected = storing_.lap + 1,
                 .seen = storing_.lap,
                 .from_rank = false};  // This rank's own memory.
    return warp::all(wait_until(
        deadline_, what, [&] { return ring_.full[storing_.stage].done(storing_.parity()); }));
  }

  /// Returns the place of this lane's choice, among the first 32, of the next row to store, or -1.
  TOKENYARD_DEVICE int32_t place_of_lane() const {
    const uint32_t row = warp::shuffle(held_row_, storing_.stage);
    return loaded_ == 0 ? -1 : place_of(row, warp::lane());
  }

  TOKENYARD_DEVICE int32_t place_of(uint32_t row, uint32_t choice) const {
    if (choice >= rows_.topk) return -1;
    return rows_.at<const int32_t>(rows_.layout.slots_at())[size_t{row} * rows_.topk + choice];
  }

  TOKENYARD_DEVICE void store_unit(int32_t place) {
    const throughput::StagePlan& plan = ring_.plan;
    const uint32_t row_bytes = rows_.layout.row_bytes;
    const uint32_t segment = warp::shuffle(held_segment_, storing_.stage);
    const auto store_to = [&](int32_t to) {
      if (to < 0) return;
      bulk::store(rows_.at<std::byte>(rows_.layout.x_at()) + size_t(to) * row_bytes +
                      segment * plan.segment_bytes,
                  ring_.stages + storing_.stage * plan.stage_bytes,
                  plan.bytes_of(segment, row_bytes));
    };
    store_to(place);
    if (rows_.topk > kWarpLanes) {
      const uint32_t row = warp::shuffle(held_row_, storing_.stage);
      for (uint32_t choice = kWarpLanes + warp::lane(); choice < rows_.topk; choice += kWarpLanes)
        store_to(place_of(row, choice));
    }
    bulk::commit();
    storing_.advance(1, plan.stages);
  }

  const Grouping& rows_;
  const SpreadRing ring_;
  const CallDeadline& deadline_;
  Supply& supply_;
  throughput::RingPosition loading_, storing_;  // Next to load, next to store.
  uint32_t loaded_ = 0;                         // Units so far.
  RowToSpread row_{};                           // Row being loaded,
  uint32_t segment_ = 0;                        // and its next segment.
  uint32_t held_row_ = 0, held_segment_ = 0;    // Row and segment of the unit in stage
                                                // warp::lane().
};

}  // namespace tokenyard::expert_major
