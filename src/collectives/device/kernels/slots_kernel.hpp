/// The kernel of collectives of few bytes. See slots.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/arithmetic.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/slots.hpp"

namespace tokenyard::device_collectives {

enum class SlotsBarrier : uint32_t {
  sent = 1,  ///< the block's threads have read the input that they send
};

/// The pieces of each message that a block sends and receives.
struct SlotsRange {
  uint32_t first, count;
  uint64_t bytes;  ///< of a message

  TOKENYARD_DEVICE static SlotsRange of(const SlotsParams& params) {
    const uint32_t first = std::min(block::index() * params.pieces_a_block, params.pieces);
    return {.first = first,
            .count = std::min(params.pieces_a_block, params.pieces - first),
            .bytes = params.call.movement.bytes()};
  }
  TOKENYARD_DEVICE uint64_t at(uint32_t piece) const { return uint64_t{piece} * Piece8::kBytes; }
  TOKENYARD_DEVICE uint32_t bytes_of(uint32_t piece) const {
    return static_cast<uint32_t>(std::min<uint64_t>(Piece8::kBytes, bytes - at(piece)));
  }
};

/// The facts that the threads of a block that move data share.
struct SlotsWork {
  const CallParams& call;
  const SlotsRange range;
  const BlockDeadline& deadline;
  const uint32_t threads;
  const uint32_t epoch, digest, parity;

  TOKENYARD_DEVICE Piece8 own(uint32_t destination, uint32_t piece) const {
    return load_piece<2>(call.input + call.movement.input_at(destination) + range.at(piece),
                         range.bytes_of(piece));
  }
  TOKENYARD_DEVICE void keep(uint32_t source, uint32_t piece, const Piece8& data) const {
    store_piece(call.result + call.movement.result_at(source) + range.at(piece), data,
                range.bytes_of(piece));
  }
};

/// Sends the block's pieces to every rank that wants them: pairs of rank and piece, a thread each.
TOKENYARD_DEVICE void send_pieces(const SlotsWork& work) {
  const CallParams& call = work.call;
  const uint32_t pairs = (call.ranks - 1) * work.range.count;
  for (uint32_t i = thread::index(); i < pairs; i += work.threads) {
    const uint32_t turn = i / work.range.count;
    const uint32_t piece = work.range.first + (i - turn * work.range.count);
    // Every rank begins with another one.
    const uint32_t rank = (call.rank + 1 + turn) % call.ranks;
    if (!call.movement.sends(call.rank, rank)) continue;
    const Slot slot = Slot::of(work.own(rank, piece), work.epoch, work.digest);
    store<Order::relaxed, Scope::sys>(call.windows.slots(rank, work.parity, call.rank) + piece,
                                      slot.bits);
  }
}

/// Waits for a piece of a rank, given what its slot held a moment ago. Returns false if the wait
/// failed.
TOKENYARD_DEVICE bool await_piece(const SlotsWork& work, uint32_t source, Peer<Bytes16> at,
                                  Slot& slot) {
  if (slot.is_of(work.epoch, work.digest)) return true;
  Awaited what{.phase = static_cast<uint32_t>(WaitPhase::data),
               .rank = source,
               .expected = work.epoch,
               .seen = slot.bits.word[2]};
  return wait_until(work.deadline, what, [&] {
    slot = {load<Order::relaxed, Scope::sys>(at)};
    what.seen = slot.bits.word[2];
    return slot.is_of(work.epoch, work.digest);
  });
}

/// Copies the pieces of every source to their place: pairs of source and piece, a thread each.
/// Returns false if a wait failed.
TOKENYARD_DEVICE bool receive_pieces(const SlotsWork& work) {
  const CallParams& call = work.call;
  const uint32_t pairs = call.ranks * work.range.count;
  for (uint32_t i = thread::index(); i < pairs; i += work.threads) {
    const uint32_t turn = i / work.range.count;
    const uint32_t piece = work.range.first + (i - turn * work.range.count);
    const uint32_t source = (call.rank + turn) % call.ranks;
    if (!call.movement.sends(source, call.rank)) continue;
    if (source == call.rank) {
      if (call.input + call.movement.input_at(source) !=
          call.result + call.movement.result_at(source))
        work.keep(source, piece, work.own(source, piece));
      continue;
    }
    const Peer<Bytes16> at = call.windows.slots(call.rank, work.parity, source) + piece;
    Slot slot{};
    if (!await_piece(work, source, at, slot)) return false;
    work.keep(source, piece, slot.data());
  }
  return true;
}

/// Sources whose slots a thread loads before it looks at the first of them.
inline constexpr uint32_t kSourcesAtOnce = 4;

/// Folds the pieces of all sources in the order of ranks, a piece per thread. Returns false if a
/// wait failed.
template <class T>
TOKENYARD_DEVICE bool fold_pieces(const SlotsWork& work) {
  const CallParams& call = work.call;
  for (uint32_t i = thread::index(); i < work.range.count; i += work.threads) {
    const uint32_t piece = work.range.first + i;
    const Folding by{call.op, call.factor, call.ranks};
    const Piece8 own = work.own(call.rank, piece);  // while the others' are on their way
    Fold<T, 2> fold;
    TOKENYARD_KEEP_ROLLED
    for (uint32_t first = 0; first < call.ranks; first += kSourcesAtOnce) {
      Slot slots[kSourcesAtOnce];
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < kSourcesAtOnce; ++k)
        if (first + k < call.ranks && first + k != call.rank)
          slots[k] = {load<Order::relaxed, Scope::sys>(
              call.windows.slots(call.rank, work.parity, first + k) + piece)};
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < kSourcesAtOnce; ++k) {
        const uint32_t source = first + k;
        if (source >= call.ranks) break;
        Piece8 data = own;
        if (source != call.rank) {
          const Peer<Bytes16> at = call.windows.slots(call.rank, work.parity, source) + piece;
          if (!await_piece(work, source, at, slots[k])) return false;
          data = slots[k].data();
        }
        if (source == 0)
          fold.begin(by, data);
        else
          fold.add(by, data);
      }
    }
    work.keep(call.rank, piece, fold.end(by));
  }
  return true;
}

TOKENYARD_DEVICE void move_pieces(const SlotsParams& params, const BlockDeadline& deadline,
                                  uint64_t epoch) {
  const CallParams& call = params.call;
  const SlotsWork work{.call = call,
                       .range = SlotsRange::of(params),
                       .deadline = deadline,
                       .threads = block::threads() - kWarpLanes,
                       .epoch = static_cast<uint32_t>(epoch),
                       .digest = digest_of(call, epoch),
                       .parity = parity_of(epoch)};
  send_pieces(work);
  NamedBarrier(SlotsBarrier::sent).sync(work.threads);
  if (!call.movement.reduces)
    receive_pieces(work);
  else if (call.movement.sends(call.rank, call.rank))
    with_element(call.type, [&](auto element) { fold_pieces<decltype(element)>(work); });
}

TOKENYARD_DEVICE void exchange_slots(const SlotsParams& params) {
  auto& shared = block::shared<CallShared>();
  if (warp::index() == 0) grid::fetch_parameters(params, params.call.workspace);
  const BlockDeadline deadline = begin_deadline(params.call);
  if (!begin_call(params.call, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  if (warp::index() + 1 != warp::count()) return move_pieces(params, deadline, epoch);
  if (block::index() == 0) {
    publish_call(params.call, epoch);
    await_calls(params.call, epoch, deadline);
  }
  pass_epoch(params.call, epoch);
}

TOKENYARD_DEFINE_KERNEL(slots_kernel, exchange_slots, SlotsParams, CallShared, kSlotsThreadsMax)

}  // namespace tokenyard::device_collectives
