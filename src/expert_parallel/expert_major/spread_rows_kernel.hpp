/// Copying rows to their experts: a mover loads each of its rows once into a stage of its ring and
/// stores it from there to all its places, a lane a pick.
#pragma once

#include "expert_parallel/expert_major/expand_call.hpp"
#include "expert_parallel/throughput/phase.hpp"
#include "expert_parallel/throughput/wait_read_kernel.hpp"

namespace tokenyard::expert_major {

class RowSpreader {
 public:
  DEVICE explicit RowSpreader(const Expand& call)
      : call_(call),
        params_(call.params),
        full_(call.shared.full + warp::index() * call.params.plan.stages),
        stages_(call.tail.stages() +
                size_t{warp::index()} * call.params.plan.stages * call.params.plan.stage_bytes),
        end_(call.of_block().end),
        load_{call.of_block().begin + warp::index()},
        store_(load_) {}

  /// Returns once all stores are complete, or the call has failed and all loads have landed.
  DEVICE void spread_all() {
    const throughput::StagePlan& plan = params_.plan;
    for (uint32_t stage = 0; stage < plan.stages; ++stage) load_next();
    int32_t place = place_of_lane();
    for (uint32_t stored = 0; store_.row < end_; ++stored) {
      if (!await_load()) {
        if (warp::lane() == 0) throughput::let_loads_land(full_, loading_, plan.stages);
        break;
      }
      store_unit(place);
      if (stored >= plan.lag) {
        throughput::wait_read_but(plan.lag);
        warp::sync();
        load_next();
      }
      place = place_of_lane();  // On its way while the next load is awaited.
    }
    bulk::wait<0>();
    warp::sync();
  }

 private:
  /// One segment of one row.
  struct Unit {
    uint32_t row, segment = 0;
  };

  DEVICE void advance(Unit& unit) const {
    if (++unit.segment < params_.plan.segments) return;
    unit.segment = 0;
    unit.row += params_.movers;
  }

  DEVICE void load_next() {
    if (load_.row >= end_) return;
    const throughput::StagePlan& plan = params_.plan;
    const uint32_t row_bytes = params_.layout.row_bytes;
    if (warp::lane() == 0) {
      const uint32_t bytes = plan.bytes_of(load_.segment, row_bytes);
      full_[loading_.stage].arrive_expect(bytes);
      bulk::load(stages_ + loading_.stage * plan.stage_bytes,
                 params_.x + size_t{load_.row} * row_bytes + load_.segment * plan.segment_bytes,
                 bytes, full_[loading_.stage]);
    }
    loading_.advance(1, plan.stages);
    advance(load_);
  }

  DEVICE bool await_load() const {
    Awaited what{.phase = static_cast<uint32_t>(throughput::Phase::dispatch_load),
                 .rank = 0,
                 .expected = storing_.lap + 1,
                 .seen = storing_.lap};
    return warp::all(wait_until(call_.deadline, what,
                                [&] { return full_[storing_.stage].done(storing_.parity()); }));
  }

  /// Where this lane's pick of the next row is wanted, or -1.
  DEVICE int32_t place_of_lane() const {
    if (store_.row >= end_ || warp::lane() >= params_.topk) return -1;
    return call_.at<const int32_t>(
        params_.layout.slots_at())[size_t{store_.row} * params_.topk + warp::lane()];
  }

  DEVICE void store_unit(int32_t place) {
    const throughput::StagePlan& plan = params_.plan;
    const uint32_t row_bytes = params_.layout.row_bytes;
    if (place >= 0)
      bulk::store(call_.at<std::byte>(params_.layout.x_at()) + size_t(place) * row_bytes +
                      store_.segment * plan.segment_bytes,
                  stages_ + storing_.stage * plan.stage_bytes,
                  plan.bytes_of(store_.segment, row_bytes));
    bulk::commit();
    storing_.advance(1, plan.stages);
    advance(store_);
  }

  const Expand& call_;
  const ExpandParams& params_;
  Completion* const full_;                      // [stages]
  std::byte* const stages_;                     // [stages][stage_bytes]
  const uint32_t end_;                          // Of the block's rows.
  Unit load_, store_;                           // The next ones,
  throughput::RingPosition loading_, storing_;  // with their stages.
};

/// By one lane of each mover: zeros to every row of padding.
DEVICE void clear_padding(const Expand& call) {
  const ExpandParams& params = call.params;
  const uint32_t row_bytes = params.layout.row_bytes;
  auto* const x = call.at<std::byte>(params.layout.x_at());
  for_each_padding(call, block::index() * params.movers + warp::index(),
                   grid::blocks() * params.movers, [&](uint32_t row) {
                     for (uint32_t at = 0; at < row_bytes; at += kZeroBytes) {
                       const uint32_t left = row_bytes - at;
                       bulk::store(x + size_t{row} * row_bytes + at, call.tail.zeros(),
                                   left < kZeroBytes ? left : kZeroBytes);
                     }
                   });
  bulk::commit();
}

/// By each mover.
DEVICE void spread_rows(const Expand& call) {
  if (warp::lane() == 0) clear_padding(call);
  warp::sync();
  RowSpreader(call).spread_all();
}

}  // namespace tokenyard::expert_major
