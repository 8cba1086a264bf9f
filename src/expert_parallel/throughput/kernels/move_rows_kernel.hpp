/// Moves rows: each is loaded once into a stage of shared memory and stored from there to its row
/// on every destination, one lane per rank. The newest stages of a mover's ring are being loaded
/// while stores may still read the `lag` oldest.
///
///     stage   | stored, maybe still read |  next to be stored  | loading ...    |
///             |<--------- lag ---------->|<----- stages - lag ----------------->|
///
/// A stage is reloaded only after wait_read proves that its stores have read it. If rows are
/// grouped by expert as they arrive, this rank's own rows stay where they are and each other row is
/// signalled with `arrived`, a few at a time: a signal must wait until the stores before it are
/// complete.
#pragma once

#include "expert_parallel/throughput/kernels/token_supply_kernel.hpp"
#include "expert_parallel/throughput/kernels/wait_read_kernel.hpp"

namespace tokenyard::throughput {

/// How arrivals are signalled: by each block when it finishes, or by its movers as they go.
enum class Arrivals : uint8_t { by_block, by_row };

/// The work of one mover. A unit is one segment of one token's row.
template <Arrivals arrivals = Arrivals::by_block>
class RowMover {
 public:
  TOKENYARD_DEVICE RowMover(const DispatchParams& params, DispatchShared& shared,
                            const DispatchTail& tail)
      : params_(params),
        full_(shared.full + warp::index() * params.plan.stages),
        stages_(tail.stages() +
                size_t{warp::index()} * params.plan.stages * params.plan.stage_bytes),
        supply_(params) {}

  /// Starts loading the block's own rows before their destinations are known.
  TOKENYARD_DEVICE void load_own() {
    while (loaded_ < params_.plan.stages && (segment_ != 0 || supply_.has_own())) {
      if (segment_ == 0) token_ = supply_.next_own();
      load_unit();
    }
  }

  /// Moves all rows of the supply; returns once their stores are complete. Returns false if the
  /// call has failed: loads may still be in flight then.
  TOKENYARD_DEVICE bool move_all(const Dispatch& call) {
    first_rank_ = rank_at(warp::lane());
    if (warp::lane() < destinations()) first_rows_ = rows_on(call, first_rank_);
    bool more = true;
    while (more && loaded_ < params_.plan.stages) more = load_next(call);
    RingPosition at;
    int32_t row = loaded_ > 0 ? row_on_first_rank(call, 0) : -1;
    for (uint32_t stored = 0; stored < loaded_; ++stored) {
      const uint32_t stage = at.stage;
      if (!await_load(call, at)) break;
      store_unit(call, stage, row);
      if constexpr (arrivals == Arrivals::by_row) note_stored(call, stage);
      at.advance(1, params_.plan.stages);
      if (stored >= params_.plan.lag && more) {
        wait_read_but(params_.plan.lag);
        warp::sync();
        more = load_next(call);
      }
      // Loads the next unit's row number while its data is awaited.
      if (stored + 1 < loaded_) row = row_on_first_rank(call, at.stage);
    }
    // Checked before the last stores are complete, so that the two latencies overlap.
    const bool failed = call.deadline.failed();
    bulk::wait<0>();
    if constexpr (arrivals == Arrivals::by_row) publish_arrived(call, stored_ - published_);
    // Lanes may have seen different answers, and let_go needs the whole warp.
    return warp::all(!failed);
  }

  /// Returns the next stage after move_all, for code that continues with the ring.
  TOKENYARD_DEVICE RingPosition position() const { return loading_; }

  /// Waits for loads in flight in a call that will not move its rows.
  TOKENYARD_DEVICE void let_go() const {
    if (warp::lane() == 0) let_loads_land(full_, loading_, params_.plan.stages);
    warp::sync();
  }

 private:
  /// Units whose stores may be in flight while those before them are signalled, and units per
  /// signal.
  static constexpr uint32_t kOnTheirWay = 4, kPublishedAtOnce = 4;
  static constexpr uint32_t kNoToken = 0xffffffff;

  /// Number of ranks to store to: the turns below.
  TOKENYARD_DEVICE uint32_t destinations() const {
    return params_.call.ranks - (arrivals == Arrivals::by_row ? 1 : 0);
  }

  TOKENYARD_DEVICE bool load_next(const Dispatch& call) {
    if (segment_ == 0 && !supply_.next(call, token_)) return false;
    load_unit();
    return true;
  }

  TOKENYARD_DEVICE void load_unit() {
    const StagePlan& plan = params_.plan;
    if (warp::lane() == 0) {
      Completion& full = full_[loading_.stage];
      const uint32_t bytes = plan.bytes_of(segment_, params_.row_bytes);
      full.arrive_expect(bytes);
      bulk::load(stages_ + loading_.stage * plan.stage_bytes,
                 params_.x + size_t{token_} * params_.row_bytes + segment_ * plan.segment_bytes,
                 bytes, full);
    }
    if (warp::lane() == loading_.stage) {
      held_token_ = token_;
      held_segment_ = segment_;
    }
    ++loaded_;
    loading_.advance(1, plan.stages);
    if (++segment_ == plan.segments) segment_ = 0;
  }

  TOKENYARD_DEVICE bool await_load(const Dispatch& call, RingPosition at) const {
    Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_load),
                 .rank = params_.call.rank,
                 .expected = at.lap + 1,
                 .seen = at.lap};
    Completion& full = full_[at.stage];
    return warp::all(wait_until(call.deadline, what, [&] { return full.done(at.parity()); }));
  }

  /// Neighbours first, this rank last, so that the ranks' stores spread over destinations.
  TOKENYARD_DEVICE uint32_t rank_at(uint32_t turn) const {
    const uint32_t rank = params_.call.rank + 1 + turn;
    return rank < params_.call.ranks ? rank : rank - params_.call.ranks;
  }

  TOKENYARD_DEVICE Peer<std::byte> rows_on(const Dispatch& call, uint32_t rank) const {
    return params_.call.arenas.of(rank) +
           static_cast<std::ptrdiff_t>(call.ready_words().rows_at(rank));
  }

  TOKENYARD_DEVICE int32_t row_of(const Dispatch& call, uint32_t token, uint32_t rank) const {
    const int32_t* const held = call.held_row(token, rank);
    return held != nullptr ? *held : params_.route[size_t{token} * params_.call.ranks + rank];
  }

  /// Returns this lane's row on the rank of its first turn for the unit in a stage, or -1.
  TOKENYARD_DEVICE int32_t row_on_first_rank(const Dispatch& call, uint32_t stage) const {
    const uint32_t token = warp::shuffle(held_token_, stage);
    return warp::lane() < destinations() ? row_of(call, token, first_rank_) : -1;
  }

  TOKENYARD_DEVICE void store_unit(const Dispatch& call, uint32_t stage, int32_t row) const {
    const uint32_t token = warp::shuffle(held_token_, stage);
    const uint32_t segment = warp::shuffle(held_segment_, stage);
    const auto store_to = [&](Peer<std::byte> rows, int32_t to_row) {
      if (to_row < 0) return;
      const size_t at = size_t(to_row) * params_.row_bytes + segment * params_.plan.segment_bytes;
      bulk::store(rows + static_cast<std::ptrdiff_t>(at),
                  stages_ + stage * params_.plan.stage_bytes,
                  params_.plan.bytes_of(segment, params_.row_bytes));
    };
    store_to(first_rows_, row);
    for (uint32_t turn = warp::lane() + kWarpLanes; turn < destinations(); turn += kWarpLanes) {
      const uint32_t rank = rank_at(turn);
      store_to(rows_on(call, rank), row_of(call, token, rank));
    }
    bulk::commit();
  }

  /// Records that the unit in a stage has been stored, and signals older units once enough are
  /// pending.
  TOKENYARD_DEVICE void note_stored(const Dispatch& call, uint32_t stage) {
    const uint32_t token = warp::shuffle(held_token_, stage);
    const bool whole = warp::shuffle(held_segment_, stage) + 1 == params_.plan.segments;
    if (warp::lane() == stored_ % kWarpLanes) stored_token_ = whole ? token : kNoToken;
    ++stored_;
    if (stored_ - published_ < kOnTheirWay + kPublishedAtOnce) return;
    bulk::wait<kOnTheirWay>();
    publish_arrived(call, kPublishedAtOnce);
  }

  /// Signals the oldest `units` units not signalled yet, whose stores are complete. Each lane
  /// signals the rows that it stored itself. The fence orders those stores before the relaxed
  /// `arrived` words.
  TOKENYARD_DEVICE void publish_arrived(const Dispatch& call, uint32_t units) {
    fence<Scope::sys>();
    for (const uint32_t end = published_ + units; published_ < end; ++published_) {
      const uint32_t token = warp::shuffle(stored_token_, published_ % kWarpLanes);
      if (token == kNoToken) continue;
      for (uint32_t turn = warp::lane(); turn < destinations(); turn += kWarpLanes) {
        const uint32_t rank = rank_at(turn);
        const int32_t row = row_of(call, token, rank);
        if (row < 0) continue;
        store<Order::relaxed, Scope::sys>(
            params_.call.control.arrived(rank, static_cast<uint32_t>(row)), call.epoch);
      }
    }
  }

  const DispatchParams& params_;
  Completion* const full_;   // [stages]
  std::byte* const stages_;  // [stages][stage_bytes]
  TokenSupply supply_;
  RingPosition loading_;       // Next unit to be loaded.
  uint32_t loaded_ = 0;        // Units so far.
  uint32_t token_ = 0;         // Token of the next unit,
  uint32_t segment_ = 0;       // and its segment; 0: the token is yet to be drawn.
  uint32_t held_token_ = 0;    // Token of the unit in stage warp::lane(),
  uint32_t held_segment_ = 0;  // and its segment.
  uint32_t first_rank_ = 0;    // Rank of this lane's first turn.
  Peer<std::byte> first_rows_;
  uint32_t stored_ = 0, published_ = 0;  // Units; only if arrivals are signalled by row.
  uint32_t stored_token_ = kNoToken;     // Token of the last stored unit with this lane's index.
};

}  // namespace tokenyard::throughput
