/// Copies rows from an ordinary tensor to where peers read them: by bulk copies through a ring,
/// started by the first lane of a warp. (Copying through the registers of summing warps takes twice
/// as long: H200.)
#pragma once

#include "expert_parallel/throughput/kernels/combine_shared.hpp"

namespace tokenyard::throughput {

/// Used by one lane. `Rows`: see sum_results_kernel.hpp; a second instance runs ahead for the
/// loads.
template <class Rows>
class RowCopier {
 public:
  TOKENYARD_DEVICE RowCopier(const Combine& call, const CombineRing& ring, Rows& rows)
      : call_(call),
        results_(call.params.preparation.results),
        ring_(ring),
        rows_(rows),
        ahead_(rows) {}

  /// Returns once every copy is complete; in a failed call, every copy already started.
  TOKENYARD_DEVICE void copy_all() {
    bool going = true;
    while (loaded_ < plan().stages && load_unit()) {
    }
    while (going && stored_ < loaded_) going = store_unit();
    let_loads_land(ring_.full, loading_, plan().stages);
    bulk::wait<0>();
    if (going) rows_.all_written();
  }

 private:
  TOKENYARD_DEVICE const StagePlan& plan() const { return results_.plan; }

  /// Loads the next segment; returns false if there is none.
  TOKENYARD_DEVICE bool load_unit() {
    if (load_segment_ == 0 && !ahead_.next(load_row_)) return false;
    const uint32_t bytes = plan().bytes_of(load_segment_, results_.row_bytes);
    Completion& full = ring_.full[loading_.stage];
    full.arrive_expect(bytes);
    bulk::load(stage(loading_), results_.y + place_of(load_row_, load_segment_), bytes, full);
    if (++load_segment_ == plan().segments) load_segment_ = 0;
    loading_.advance(1, plan().stages);
    ++loaded_;
    return true;
  }

  /// Stores the next loaded segment; returns false if the call has failed.
  TOKENYARD_DEVICE bool store_unit() {
    if (store_segment_ == 0) rows_.next(store_row_);
    if (!call_.await_stage(Phase::combine_load, ring_.full[storing_.stage], storing_.lap))
      return false;
    bulk::store(results_.to + place_of(store_row_, store_segment_), stage(storing_),
                plan().bytes_of(store_segment_, results_.row_bytes));
    bulk::commit();
    storing_.advance(1, plan().stages);
    ++stored_;
    if (++store_segment_ == plan().segments) {
      store_segment_ = 0;
      stored_up_to_ = store_row_.place + 1;
    }
    // Every stage but the last stored has been read, so the one before it is free.
    bulk::wait_read<1>();
    if (stored_ > 1) load_unit();
    if (stored_ % kOnTheirWay == 0) say_written();
    return true;
  }

  /// Publishes the rows stored up to the previous call. kOnTheirWay units have been stored since,
  /// so bulk::wait lets those stay in flight and returns as soon as the older ones are complete.
  TOKENYARD_DEVICE void say_written() {
    bulk::wait<kOnTheirWay>();
    rows_.written_up_to(said_next_);
    said_next_ = stored_up_to_;
  }

  TOKENYARD_DEVICE size_t place_of(const typename Rows::Row& row, uint32_t segment) const {
    return size_t{row.row} * results_.row_bytes + segment * plan().segment_bytes;
  }
  TOKENYARD_DEVICE std::byte* stage(RingPosition at) const {
    return ring_.stages + at.stage * plan().stage_bytes;
  }

  static constexpr int kOnTheirWay = 4;  // Units in flight.

  const Combine& call_;
  const ResultsParams& results_;
  const CombineRing& ring_;
  Rows& rows_;
  Rows ahead_;
  typename Rows::Row load_row_{}, store_row_{};
  uint32_t load_segment_ = 0, store_segment_ = 0;
  RingPosition loading_, storing_;
  uint32_t loaded_ = 0, stored_ = 0;           // Units.
  uint32_t stored_up_to_ = 0, said_next_ = 0;  // Places.
};

}  // namespace tokenyard::throughput
