/// The loading lanes for data that tasks stream and for data that they load ahead.
#pragma once

#include "device/unroll.hpp"
#include "megakernel/kernels/loader_kernel.hpp"
#include "megakernel/kernels/task_list.hpp"

namespace tokenyard::megakernel {

inline constexpr uint32_t kAheadLane = 30;
static_assert(kComputeWarpsMax <= kAheadLane);

/// Returns the loading warp whose lane loads for a compute warp. Neighbours get different ones: a
/// step of a lane takes some hundred dependent instructions, and all lanes of its warp wait with
/// it, while on an H200 a block's units should follow one another every 220 cycles.
TOKENYARD_DEVICE uint32_t unit_loading_warp(uint32_t compute_warp) {
  return compute_warp % 2 == 0 ? 0 : 3;
}

/// Units per warp up to which a stream has fewer copies in flight: it is loaded while words are
/// awaited, also those of earlier stages, and each copy slows these waits.
inline constexpr uint32_t kShortUnits = 3;

/// Steps between checks of the failure word, whose load from the L2 cache would take too long
/// between two copies.
inline constexpr uint32_t kStepsBetweenLooks = 8;

/// Lane w: keeps the ring of compute warp w full.
///
/// All these lanes share one loop, take one small step per round, and never sleep in it: if they
/// waited at different places, the hardware would run them one by one, each through all of its
/// waits.
template <class List>
class UnitLoader {
 public:
  TOKENYARD_DEVICE UnitLoader(const Working& working, uint32_t warp)
      : working_(working),
        warp_(warp),
        ring_(unit_slot(working.params, warp, 0)),
        full_(settled(working.shared.unit_full[warp])),
        empty_(settled(working.shared.unit_empty[warp])),
        packet_full_(settled(working.shared.packet_full)) {}

  TOKENYARD_DEVICE void run() {
    loader_waits(working_, RunPhase::units, [&] {
      TOKENYARD_KEEP_ROLLED
      for (uint32_t i = 0; i < kStepsBetweenLooks && !over_; ++i) step();
      return over_;
    });
    for (; flying_ > 0; --flying_) {
      let_land(full_[landed_.slot], landed_.parity());
      landed_.next(working_.params.streams.depth);
    }
  }

 private:
  TOKENYARD_DEVICE void step() {
    if (rows_left_ == 0) return open_packet();
    const StreamPlan& plan = working_.params.streams;
    // Copies beyond the limit add no bandwidth and slow every hop (H200: 64 KiB per block).
    if (flying_ >= limit_) {
      if (!full_[landed_.slot].done_now(landed_.parity())) return;
      landed_.next(plan.depth);
      if (--flying_ >= limit_) return;
    }
    // In the first lap all slots are empty.
    if (issued_.lap > 0 && !empty_[issued_.slot].done_now(issued_.parity() ^ 1)) return;
    issue();
  }

  TOKENYARD_DEVICE void open_packet() {
    WorkerShared& shared = working_.shared;
    if (!packet_full_[packets_.slot].done_now(packets_.parity())) return;
    if (opened_) {  // All its copies have been issued.
      shared.packet_empty[packets_.slot].arrive();
      packets_.next(kPacketSlots);
      opened_ = false;
      return;
    }
    const NoteKind kind = shared.notes[packets_.slot].look();
    if (List::kScheduled && kind == NoteKind::expected) return;
    over_ = kind == NoteKind::end;
    opened_ = true;
    if (!is_task(kind)) return;
    begin_part(shared.packet(packets_.slot).task);
    stream_ = List::stream(shared.packet(packets_.slot), warp_, working_.params.compute_warps);
    rows_left_ = stream_.row_bytes > 0 ? stream_.rows : 0;
    const StreamPlan& plan = working_.params.streams;
    const bool is_short = uint64_t{rows_left_} * stream_.row_bytes <= kShortUnits * plan.unit_bytes;
    limit_ = is_short ? (plan.in_flight + 1) / 2 : plan.in_flight;
    in_row_ = 0;
  }

  TOKENYARD_DEVICE void issue() {
    const uint32_t left = stream_.row_bytes - in_row_;
    const uint32_t bytes = left < stream_.piece_bytes ? left : stream_.piece_bytes;
    full_[issued_.slot].arrive_expect(bytes);
    // Weights are used once per iteration: in the cache, they would only evict reusable data.
    bulk::load(ring_ + issued_.slot * working_.params.streams.unit_bytes, stream_.from + in_row_,
               bytes, full_[issued_.slot], evict_first());
    issued_.next(working_.params.streams.depth);
    ++flying_;
    in_row_ += bytes;
    if (in_row_ < stream_.row_bytes) return;
    in_row_ = 0;
    stream_.from += stream_.row_stride;
    --rows_left_;
  }

  const Working& working_;
  uint32_t warp_;
  std::byte* ring_;
  Completion *full_, *empty_, *packet_full_;
  RingCursor packets_, issued_, landed_;
  uint32_t flying_ = 0;    ///< copies issued and not yet seen to have landed
  StreamedRows stream_{};  ///< of the open packet; `from` is the start of the next row
  uint32_t rows_left_ = 0, in_row_ = 0;
  uint32_t limit_ = 0;  ///< upper bound of flying_
  bool opened_ = false, over_ = false;
};

/// Lane kAheadLane: loads, for one task at a time, the data that the task needs before it begins.
template <class List>
class AheadLoader {
 public:
  TOKENYARD_DEVICE explicit AheadLoader(const Working& working) : working_(working) {}

  TOKENYARD_DEVICE void run() {
    WorkerShared& shared = working_.shared;
    for (RingCursor packets;; packets.next(kPacketSlots)) {
      if (!loader_waits(working_, RunPhase::packet, [&] {
            return shared.packet_full[packets.slot].done_now(packets.parity()) &&
                   shared.notes[packets.slot].look() != NoteKind::expected;
          }))
        break;
      const Note& note = shared.notes[packets.slot];
      const NoteKind kind = note.look();
      if (kind == NoteKind::end) break;
      if (is_task(kind) && List::loads_ahead(shared.packet(packets.slot).type) &&
          !load(shared.packet(packets.slot), note.iteration))
        break;
      shared.packet_empty[packets.slot].arrive();
    }
    if (loads_ > 0) let_land(shared.ahead_full, (loads_ - 1) & 1);
  }

 private:
  TOKENYARD_DEVICE bool load(const Packet& packet, uint64_t iteration) {
    WorkerShared& shared = working_.shared;
    const bool may = loader_waits(working_, RunPhase::units, [&] {
      // Acquire: everything that earlier iterations have written is visible.
      return load_begun() > iteration && (loads_ == 0 || shared.ahead_empty.done_now(~loads_ & 1));
    });
    if (!may) return false;
    fence_async();  // Makes ordinary stores visible to the copies.
    begin_part(packet.task);
    Ahead to(ahead_area(working_.params), shared.ahead_full);
    List::ahead(packet, to);
    ++loads_;
    return true;
  }
  TOKENYARD_DEVICE uint64_t load_begun() const {
    return tokenyard::load<Order::acquire, Scope::block>(&working_.shared.begun);
  }

  const Working& working_;
  uint32_t loads_ = 0;
};

/// Returns whether the calling thread is lane `lane` of loading warp `warp`, or of the last loading
/// warp if there are fewer.
TOKENYARD_DEVICE bool loads_as(const RunParams& params, uint32_t warp, uint32_t lane) {
  const uint32_t last = warp::count() - params.compute_warps - 1;
  return warp::index() == params.compute_warps + (warp < last ? warp : last) &&
         warp::lane() == lane;
}

/// Loads for tasks, called by all threads outside the compute warps.
template <class List>
TOKENYARD_DEVICE void load_for_tasks(const Working& working) {
  const RunParams& params = working.params;
  const bool unit_lane = warp::lane() < params.compute_warps;
  if (params.ahead_bytes > 0 && loads_as(params, 2, kAheadLane))
    AheadLoader<List>(working).run();
  else if (params.streams.unit_bytes > 0 && unit_lane &&
           loads_as(params, unit_loading_warp(warp::lane()), warp::lane()))
    UnitLoader<List>(working, warp::lane()).run();
}

}  // namespace tokenyard::megakernel
