/// Moving rows: each is loaded once into a stage of shared memory and stored from there to its row
/// on every rank that wants it, a lane a rank. The newest stages of a mover's ring are being loaded
/// while the `lag` oldest may still be read by stores.
///
///     stage   | stored, maybe still read |  next to be stored  | loading ...    |
///             |<--------- lag ---------->|<----- stages - lag ----------------->|
///
/// Where rows are grouped by expert as they come, those of the own rank are left where they are,
/// and each of the others is told to have arrived: a few at a time, since to tell takes as long as
/// the stores before it are under way.
#pragma once

#include "expert_parallel/throughput/kernels/token_supply_kernel.hpp"
#include "expert_parallel/throughput/kernels/wait_read_kernel.hpp"

namespace tokenyard::throughput {

/// Who tells that rows have arrived: each block in the end, or its movers as they go.
enum class Arrivals : uint8_t { by_block, by_row };

/// One mover's work. A unit is one segment of one token's row.
template <Arrivals arrivals = Arrivals::by_block>
class RowMover {
 public:
  DEVICE RowMover(const DispatchParams& params, DispatchShared& shared, const DispatchTail& tail)
      : params_(params),
        full_(shared.full + warp::index() * params.plan.stages),
        stages_(tail.stages() +
                size_t{warp::index()} * params.plan.stages * params.plan.stage_bytes),
        supply_(params) {}

  /// Starts loading the block's own rows, before anybody knows where they go.
  DEVICE void load_own() {
    while (loaded_ < params_.plan.stages && (segment_ != 0 || supply_.has_own())) {
      if (segment_ == 0) token_ = supply_.next_own();
      load_unit();
    }
  }

  /// Moves all rows of the supply; returns once their stores are complete. False if the call has
  /// failed instead: then loads may be under way.
  DEVICE bool move_all(const Dispatch& call) {
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
      // Ahead of its use: the next unit's row is on its way while its load is awaited.
      if (stored + 1 < loaded_) row = row_on_first_rank(call, at.stage);
    }
    // Asked before the last stores are complete, since the answer takes as long as they do.
    const bool failed = call.deadline.failed();
    bulk::wait<0>();
    if constexpr (arrivals == Arrivals::by_row) publish_arrived(call, stored_ - published_);
    // Lanes may have been answered differently, and let_go is for whole warps.
    return warp::all(!failed);
  }

  /// After move_all: the stage that is next, for who goes on with the ring.
  DEVICE RingPosition position() const { return loading_; }

  /// For a call that will not move its rows.
  DEVICE void let_go() const {
    if (warp::lane() == 0) let_loads_land(full_, loading_, params_.plan.stages);
    warp::sync();
  }

 private:
  /// Units whose stores may be on their way when those before them are told to have arrived, and
  /// how many are told at once.
  static constexpr uint32_t kOnTheirWay = 4, kPublishedAtOnce = 4;
  static constexpr uint32_t kNoToken = 0xffffffff;

  /// Ranks that are stored to: the turns below.
  DEVICE uint32_t destinations() const {
    return params_.call.ranks - (arrivals == Arrivals::by_row ? 1 : 0);
  }

  DEVICE bool load_next(const Dispatch& call) {
    if (segment_ == 0 && !supply_.next(call, token_)) return false;
    load_unit();
    return true;
  }

  DEVICE void load_unit() {
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

  DEVICE bool await_load(const Dispatch& call, RingPosition at) const {
    Awaited what{.phase = static_cast<uint32_t>(Phase::dispatch_load),
                 .rank = params_.call.rank,
                 .expected = at.lap + 1,
                 .seen = at.lap};
    Completion& full = full_[at.stage];
    return warp::all(wait_until(call.deadline, what, [&] { return full.done(at.parity()); }));
  }

  /// Neighbours first, this rank last, so that ranks do not all store to the same one.
  DEVICE uint32_t rank_at(uint32_t turn) const {
    const uint32_t rank = params_.call.rank + 1 + turn;
    return rank < params_.call.ranks ? rank : rank - params_.call.ranks;
  }

  DEVICE Peer<std::byte> rows_on(const Dispatch& call, uint32_t rank) const {
    return params_.call.arenas.of(rank) +
           static_cast<std::ptrdiff_t>(call.ready_words().rows_at(rank));
  }

  DEVICE int32_t row_of(const Dispatch& call, uint32_t token, uint32_t rank) const {
    const int32_t* const held = call.held_row(token, rank);
    return held != nullptr ? *held : params_.route[size_t{token} * params_.call.ranks + rank];
  }

  /// For the unit in a stage, this lane's row on the rank of its first turn, or -1.
  DEVICE int32_t row_on_first_rank(const Dispatch& call, uint32_t stage) const {
    const uint32_t token = warp::shuffle(held_token_, stage);
    return warp::lane() < destinations() ? row_of(call, token, first_rank_) : -1;
  }

  DEVICE void store_unit(const Dispatch& call, uint32_t stage, int32_t row) const {
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

  /// The unit in a stage has been stored: those some way before it may be complete by now.
  DEVICE void note_stored(const Dispatch& call, uint32_t stage) {
    const uint32_t token = warp::shuffle(held_token_, stage);
    const bool whole = warp::shuffle(held_segment_, stage) + 1 == params_.plan.segments;
    if (warp::lane() == stored_ % kWarpLanes) stored_token_ = whole ? token : kNoToken;
    ++stored_;
    if (stored_ - published_ < kOnTheirWay + kPublishedAtOnce) return;
    bulk::wait<kOnTheirWay>();
    publish_arrived(call, kPublishedAtOnce);
  }

  /// Of the oldest `units` that are not told yet, whose stores are complete: each lane tells of
  /// those that it has stored itself. The fence publishes them with the words after it.
  DEVICE void publish_arrived(const Dispatch& call, uint32_t units) {
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
  RingPosition loading_;       // Of the next unit to be loaded.
  uint32_t loaded_ = 0;        // Units so far.
  uint32_t token_ = 0;         // The next unit's,
  uint32_t segment_ = 0;       // with its segment; 0 when the token is yet to come.
  uint32_t held_token_ = 0;    // Of the unit in stage warp::lane(),
  uint32_t held_segment_ = 0;  // with its segment.
  uint32_t first_rank_ = 0;    // This lane's first turn.
  Peer<std::byte> first_rows_;
  uint32_t stored_ = 0, published_ = 0;  // Units; only where arrivals are told by row.
  uint32_t stored_token_ = kNoToken;     // Of the last such unit with this lane's number.
};

}  // namespace tokenyard::throughput
