/// The kernel of collectives of some megabytes. See packets.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>

#include "collectives/device/kernels/arithmetic.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/packets.hpp"
#include "collectives/device/kernels/pieces.hpp"

namespace tokenyard::device_collectives {

/// A block's knowledge of the calls of all ranks.
enum class Calls : uint32_t { unknown, alike, different };

struct PacketsShared : CallShared {
  Calls calls;
};

/// Pieces that a thread moves at once: `count` whole ones at multiples of 16, or one of any kind.
template <uint32_t count>
struct PacketStep {
  uint32_t first, stride;

  TOKENYARD_DEVICE uint32_t piece(uint32_t k) const { return first + k * stride; }
};

/// The facts that a thread knows.
struct PacketsWork {
  const CallParams& call;
  const BlockDeadline& deadline;
  const Calls& calls;  ///< of the block
  const Bytes16 key;
  const uint32_t parity;
  const uint32_t first, stride;  ///< this thread's pieces
  const uint32_t count, whole;   ///< how many there are; those at the front that fill steps
  const uint64_t bytes;          ///< of a message

  TOKENYARD_DEVICE static std::ptrdiff_t at(uint32_t piece) {
    return static_cast<std::ptrdiff_t>(piece) * Piece16::kBytes;
  }
  TOKENYARD_DEVICE uint32_t bytes_of(uint32_t piece) const {
    return static_cast<uint32_t>(
        std::min<uint64_t>(Piece16::kBytes, bytes - static_cast<uint64_t>(at(piece))));
  }
  TOKENYARD_DEVICE const std::byte* input(uint32_t destination) const {
    return call.input + call.movement.input_at(destination);
  }
  TOKENYARD_DEVICE std::byte* result(uint32_t source) const {
    return call.result + call.movement.result_at(source);
  }
  TOKENYARD_DEVICE Bytes16 keyed(const Bytes16& bits) const {
    return {{bits.word[0] ^ key.word[0], bits.word[1] ^ key.word[1], bits.word[2] ^ key.word[2],
             bits.word[3] ^ key.word[3]}};
  }
};

/// Returns this thread's work: every `threads`-th piece of the block's range.
TOKENYARD_DEVICE PacketsWork work_of(const PacketsParams& params, const BlockDeadline& deadline,
                                     const PacketsShared& shared) {
  const CallParams& call = params.call;
  const Movement& movement = call.movement;
  const uint32_t threads = block::threads() - kWarpLanes;
  const uint32_t begin = std::min(block::index() * params.pieces_a_block, params.pieces);
  const uint32_t end = std::min(begin + params.pieces_a_block, params.pieces);
  const uint32_t first = begin + thread::index();
  const uint64_t bytes = movement.bytes();
  // All messages begin at multiples of sixteen, or pieces are moved one by one.
  const bool has_parts = movement.input_has_parts || movement.result_has_parts;
  const uint32_t bits = pieces::low_bits(call.input) | pieces::low_bits(call.result) |
                        static_cast<uint32_t>(movement.begin | (has_parts ? movement.part : 0));
  const uint32_t whole_end =
      params.in_steps && bits % Piece16::kBytes == 0
          ? std::min<uint32_t>(end, static_cast<uint32_t>(bytes / Piece16::kBytes))
          : 0;
  const auto pieces_before = [&](uint32_t limit) {
    return first < limit ? (limit - first + threads - 1) / threads : 0;
  };
  return {.call = call,
          .deadline = deadline,
          .calls = shared.calls,
          .key = params.key,
          .parity = parity_of(shared.epoch),
          .first = first,
          .stride = threads,
          .count = pieces_before(end),
          .whole = pieces_before(whole_end),
          .bytes = bytes};
}

/// Calls `body(step)` for the next pieces after the first `done`: up to four at once, as far as
/// there are whole ones. Advances `done`; returns what `body` does.
template <uint32_t most = 4, class Body>
TOKENYARD_DEVICE bool next_step(const PacketsWork& work, uint32_t& done, Body body) {
  if constexpr (most > 1)
    if (done + most > work.whole) return next_step<most / 2>(work, done, body);
  const uint32_t first = work.first + done * work.stride;
  done += most;
  return body(PacketStep<most>{first, work.stride});
}

template <uint32_t count>
TOKENYARD_DEVICE void load_pieces(const PacketsWork& work, const std::byte* from,
                                  const PacketStep<count>& step, Piece16 (&held)[count]) {
  if constexpr (count == 1) {
    held[0] = load_piece<4>(from + work.at(step.first), work.bytes_of(step.first));
  } else {
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k)
      held[k] = pieces::load_whole(from + work.at(step.piece(k)));
  }
}

template <uint32_t count>
TOKENYARD_DEVICE void store_pieces(const PacketsWork& work, std::byte* to,
                                   const PacketStep<count>& step, const Piece16 (&held)[count]) {
  if constexpr (count == 1) {
    store_piece(to + work.at(step.first), held[0], work.bytes_of(step.first));
  } else {
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k) pieces::store_whole(to + work.at(step.piece(k)), held[k]);
  }
}

/// Sends pieces to every rank that wants them.
template <uint32_t count>
TOKENYARD_DEVICE void send_step(const PacketsWork& work, const PacketStep<count>& step) {
  const CallParams& call = work.call;
  TOKENYARD_KEEP_ROLLED
  for (uint32_t turn = 1; turn < call.ranks; ++turn) {
    const uint32_t rank = (call.rank + turn) % call.ranks;  // Every rank begins with another one.
    if (!call.movement.sends(call.rank, rank)) continue;
    Piece16 held[count];
    load_pieces(work, work.input(rank), step, held);
    const Peer<Bytes16> to = call.windows.packets(rank, work.parity, call.rank);
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k)
      store<Order::relaxed, Scope::sys>(to + step.piece(k),
                                        work.keyed(std::bit_cast<Bytes16>(held[k])));
  }
}

TOKENYARD_DEVICE bool is_empty(const Bytes16& packet) {
  return (packet.word[0] | packet.word[1] | packet.word[2] | packet.word[3]) == 0;
}

/// Takes pieces of a rank out of their packets, which are empty then. Polls all of them at once.
/// Returns false if the wait failed.
template <uint32_t count>
TOKENYARD_DEVICE bool take_packets(const PacketsWork& work, uint32_t source,
                                   const PacketStep<count>& step, Piece16 (&held)[count]) {
  const Peer<Bytes16> from = work.call.windows.packets(work.call.rank, work.parity, source);
  Bytes16 packets[count];
  Awaited what{
      .phase = static_cast<uint32_t>(WaitPhase::data), .rank = source, .expected = 1, .seen = 0};
  const bool came = wait_until(work.deadline, what, [&] {
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k)
      packets[k] = load<Order::relaxed, Scope::sys>(from + step.piece(k));
    bool all = true;
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k) all = !is_empty(packets[k]) && all;
    return all;
  });
  if (!came) return false;
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < count; ++k) {
    held[k] = std::bit_cast<Piece16>(work.keyed(packets[k]));
    // Mutant: a packet stays full.
    if (!mutated()) store<Order::relaxed, Scope::sys>(from + step.piece(k), Bytes16{});
  }
  return true;
}

/// Waits until the block knows whether all ranks make this call, which must be known before a
/// result is written. Returns whether they do. The warp that learns it has the deadline.
TOKENYARD_DEVICE bool are_calls_alike(const PacketsWork& work) {
  Calls calls = load<Order::relaxed, Scope::block>(&work.calls);
  Awaited what{
      .phase = static_cast<uint32_t>(WaitPhase::call), .rank = work.call.rank, .from_rank = false};
  if (calls == Calls::unknown)
    wait_until(
        what,
        [&] {
          calls = load<Order::relaxed, Scope::block>(&work.calls);
          return calls != Calls::unknown;
        },
        [&] { return !work.deadline.failed(); });
  return calls == Calls::alike;
}

/// Copies this rank's own pieces to their place. They are data of this call, whatever others make.
template <uint32_t count>
TOKENYARD_DEVICE void copy_own(const PacketsWork& work, const PacketStep<count>& step) {
  const uint32_t rank = work.call.rank;
  if (!work.call.movement.sends(rank, rank)) return;
  const std::byte* const from = work.input(rank);
  std::byte* const to = work.result(rank);
  if (from == to) return;
  Piece16 held[count];
  load_pieces(work, from, step, held);
  store_pieces(work, to, step, held);
}

/// Copies pieces of every source to their place. Returns false if a wait failed or calls differ.
template <uint32_t count>
TOKENYARD_DEVICE bool copy_step(const PacketsWork& work, const PacketStep<count>& step) {
  const CallParams& call = work.call;
  copy_own(work, step);
  TOKENYARD_KEEP_ROLLED
  for (uint32_t turn = 1; turn < call.ranks; ++turn) {
    const uint32_t source = (call.rank + turn) % call.ranks;
    if (!call.movement.sends(source, call.rank)) continue;
    Piece16 held[count];
    if (!take_packets(work, source, step, held) || !are_calls_alike(work)) return false;
    store_pieces(work, work.result(source), step, held);
  }
  return true;
}

/// Folds pieces of all sources in the order of ranks. `pieces`: this rank's own, then the results.
/// Returns false if a wait failed.
template <class T, bool adds, uint32_t count>
TOKENYARD_DEVICE bool fold_pieces(const PacketsWork& work, const PacketStep<count>& step,
                                  Piece16 (&pieces)[count]) {
  const CallParams& call = work.call;
  const Folding by{call.op, call.factor, call.ranks};
  Fold<T, 4, adds> folds[count];
  TOKENYARD_KEEP_ROLLED
  for (uint32_t source = 0; source < call.ranks; ++source) {
    Piece16 held[count];
    if (source != call.rank) {
      if (!take_packets(work, source, step, held)) return false;
    } else {
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < count; ++k) held[k] = pieces[k];
    }
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < count; ++k)
      if (source == 0)
        folds[k].begin(by, held[k]);
      else
        folds[k].add(by, held[k]);
  }
  TOKENYARD_UNROLL
  for (uint32_t k = 0; k < count; ++k) pieces[k] = folds[k].end(by);
  return true;
}

/// Whether elements can be summed in steps of several pieces: floats, which train models. A byte
/// takes a register of its own.
template <class T>
inline constexpr bool kInSteps = std::floating_point<typename NumberOf<T>::type> && sizeof(T) > 1;

/// Folds pieces of all ranks. Returns false if a wait failed or calls differ.
template <uint32_t count>
TOKENYARD_DEVICE bool fold_step(const PacketsWork& work, const PacketStep<count>& step) {
  const CallParams& call = work.call;
  Piece16 pieces[count];
  load_pieces(work, work.input(call.rank), step, pieces);
  const bool adds = Folding{call.op, call.factor, call.ranks}.adds();
  bool folded = false;
  with_element(call.type, [&](auto element) {
    using T = decltype(element);
    if constexpr (kInSteps<T>)
      if (adds) {
        folded = fold_pieces<T, true>(work, step, pieces);
        return;
      }
    if constexpr (count == 1) folded = fold_pieces<T, false>(work, step, pieces);
  });
  if (!folded || !are_calls_alike(work)) return false;
  store_pieces(work, work.result(call.rank), step, pieces);
  return true;
}

/// Takes the pieces that this rank gets of a step. Returns false if a wait failed or calls differ.
template <uint32_t count>
TOKENYARD_DEVICE bool take_step(const PacketsWork& work, const PacketStep<count>& step) {
  const Movement& movement = work.call.movement;
  if (!movement.reduces) return copy_step(work, step);
  return !movement.sends(work.call.rank, work.call.rank) || fold_step(work, step);
}

/// Sends and takes the thread's pieces, a step behind those that it sends.
TOKENYARD_DEVICE void move_packets(const PacketsWork& work) {
  uint32_t sent = 0, taken = 0;
  TOKENYARD_KEEP_ROLLED
  while (taken < work.count) {
    const bool is_first = sent == 0;
    if (sent < work.count)
      next_step(work, sent, [&](const auto& step) {
        send_step(work, step);
        return true;
      });
    if (is_first && sent < work.count) continue;
    if (!next_step(work, taken, [&](const auto& step) { return take_step(work, step); })) return;
  }
}

TOKENYARD_DEVICE void exchange_packets(const PacketsParams& params) {
  auto& shared = block::shared<PacketsShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline = begin_deadline(call);
  if (thread::index() == 0) shared.calls = Calls::unknown;
  if (!begin_call(call, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  if (warp::index() + 1 != warp::count()) return move_packets(work_of(params, deadline, shared));
  if (block::index() == 0) publish_call(call, epoch);
  const bool alike = await_calls(call, epoch, deadline);
  if (warp::elect())
    store<Order::relaxed, Scope::block>(&shared.calls, alike ? Calls::alike : Calls::different);
  pass_epoch(call, epoch);
}

TOKENYARD_DEFINE_KERNEL(packets_kernel, exchange_packets, PacketsParams, PacketsShared,
                        kPacketsThreadsMax)

}  // namespace tokenyard::device_collectives
