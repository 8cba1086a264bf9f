/// The kernel of collectives of many bytes on tensors anywhere. See rings.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/arithmetic.hpp"
#include "collectives/device/kernels/chunks_kernel.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/rings.hpp"

namespace tokenyard::device_collectives {

/// The facts that the warps of a block that move data share.
struct RingsWork {
  const CallParams& call;
  const BlockDeadline& deadline;
  const uint64_t epoch;
  const uint32_t digest, parity, chunk_bytes, places;

  /// Chunks of the longest message.
  TOKENYARD_DEVICE uint64_t chunks() const {
    return (call.movement.bytes() + chunk_bytes - 1) / chunk_bytes;
  }
  /// Returns the bytes of a chunk of the message between two ranks; 0 beyond its end.
  TOKENYARD_DEVICE uint32_t bytes_of(uint64_t chunk, uint32_t source, uint32_t destination) const {
    const uint64_t begin = chunk * chunk_bytes;
    const uint64_t bytes = call.movement.bytes_between(source, destination);
    return static_cast<uint32_t>(std::min<uint64_t>(chunk_bytes, std::max(bytes, begin) - begin));
  }
  TOKENYARD_DEVICE uint32_t place_of(uint64_t chunk) const {
    return static_cast<uint32_t>(chunk % places);
  }
  /// Returns what a `filled` or `consumed` word of this chunk says.
  TOKENYARD_DEVICE Bytes16 word_of(uint64_t chunk) const {
    return {{static_cast<uint32_t>(epoch), digest, static_cast<uint32_t>(chunk / places), 0}};
  }
};

/// Waits for the word of a chunk. Relaxed polls; one acquire follows them.
TOKENYARD_DEVICE bool await_word(const RingsWork& work, Peer<Bytes16> at, uint64_t chunk,
                                 uint32_t rank, WaitPhase phase) {
  const Bytes16 expected = work.word_of(chunk);
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = chunk};
  const bool came = wait_until(work.deadline, what, [&] {
    const Bytes16 word = load<Order::relaxed, Scope::sys>(at);
    what.seen = word.word[0] == expected.word[0] ? word.word[2] : 0;
    return word.word[0] == expected.word[0] && word.word[1] == expected.word[1] &&
           word.word[2] == expected.word[2];
  });
  if (came) fence_acquire<Scope::sys>();
  return came;
}

/// Waits until every rank that gets this chunk has consumed the one that used its place before.
/// Called by a warp.
TOKENYARD_DEVICE bool await_places(const RingsWork& work, uint64_t chunk) {
  if (chunk < work.places) return true;
  const CallParams& call = work.call;
  const uint64_t before = chunk - work.places;
  bool all = true;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    bool came = true;
    if (rank < call.ranks && call.movement.sends(call.rank, rank))
      came = await_word(work,
                        call.windows.consumed(call.rank, work.parity, rank, work.place_of(chunk)),
                        before, rank, WaitPhase::place);
    all = warp::all(came) && all;
  }
  warp::sync();
  return all;
}

/// Stores a chunk of this rank's input in another rank's ring. Called by a warp.
TOKENYARD_DEVICE void send_chunk(const RingsWork& work, uint64_t chunk, uint32_t rank) {
  const CallParams& call = work.call;
  const uint32_t bytes = work.bytes_of(chunk, call.rank, rank);
  const std::byte* const from =
      call.input + call.movement.input_at(rank) + chunk * work.chunk_bytes;
  const Peer<Bytes16> to = call.windows.chunk(rank, work.parity, call.rank, work.place_of(chunk));
  constexpr uint32_t kStep = kWarpLanes * kPiecesAtOnce;
  const uint32_t pieces = (bytes + Piece16::kBytes - 1) / Piece16::kBytes;
  for (uint32_t first = warp::lane(); first < pieces; first += kStep) {
    Piece16 held[kPiecesAtOnce];
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kPiecesAtOnce; ++k) {
      const uint32_t at = (first + k * kWarpLanes) * Piece16::kBytes;
      if (at < bytes) held[k] = load_piece<4>(from + at, Piece16::bytes_of(bytes - at));
    }
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kPiecesAtOnce; ++k)
      if (first + k * kWarpLanes < pieces)
        store_vector(to + (first + k * kWarpLanes), std::bit_cast<Bytes16>(held[k]));
  }
}

/// Sends chunks until all are claimed. Called by a warp.
TOKENYARD_DEVICE void send_chunks(const RingsWork& work) {
  const CallParams& call = work.call;
  if (!call.movement.has_input(call.rank)) return;
  for (uint64_t claims = 0; claims <= work.chunks(); ++claims) {
    const uint64_t chunk = claim_chunk(call, work.parity, Role::sender);
    if (chunk >= work.chunks() || !await_places(work, chunk)) return;
    for (uint32_t turn = 1; turn < call.ranks; ++turn) {
      const uint32_t rank = (call.rank + turn) % call.ranks;  // Every rank begins with another one.
      if (call.movement.sends(call.rank, rank)) send_chunk(work, chunk, rank);
    }
    warp::sync();
    // Each lane's word is a release of what all lanes have stored, and of their loads of the input.
    for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes)
      if (call.movement.sends(call.rank, rank)) {
        fence_release<Scope::sys>();
        store<Order::relaxed, Scope::sys>(
            call.windows.filled(rank, work.parity, call.rank, work.place_of(chunk)),
            work.word_of(chunk));
      }
  }
}

/// Waits for a chunk of every source. Called by a warp.
TOKENYARD_DEVICE bool await_chunk(const RingsWork& work, uint64_t chunk) {
  const CallParams& call = work.call;
  bool all = true;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    bool came = true;
    // Mutant: a receiver does not wait for its own rank's senders.
    if (rank < call.ranks && call.movement.sends(rank, call.rank) &&
        !(rank == call.rank && mutated()))
      came =
          await_word(work, call.windows.filled(call.rank, work.parity, rank, work.place_of(chunk)),
                     chunk, rank, WaitPhase::chunk);
    all = warp::all(came) && all;
  }
  warp::sync();
  return all;
}

/// Returns some of a chunk's bytes from a source: its own input, or its ring.
TOKENYARD_DEVICE Piece16 chunk_piece(const RingsWork& work, uint64_t chunk, uint32_t source,
                                     uint32_t at, uint32_t bytes) {
  const CallParams& call = work.call;
  if (source == call.rank)
    return load_piece<4>(
        call.input + call.movement.input_at(source) + chunk * work.chunk_bytes + at, bytes);
  const Peer<Bytes16> ring =
      call.windows.chunk(call.rank, work.parity, source, work.place_of(chunk));
  return std::bit_cast<Piece16>(load_vector(
      Peer<const Bytes16>((ring + static_cast<std::ptrdiff_t>(at / Piece16::kBytes)).address())));
}

/// Copies a chunk of a source to its place in the result. Called by a warp.
TOKENYARD_DEVICE void copy_chunk(const RingsWork& work, uint64_t chunk, uint32_t source) {
  const CallParams& call = work.call;
  const uint32_t bytes = work.bytes_of(chunk, source, call.rank);
  std::byte* const to = call.result + call.movement.result_at(source) + chunk * work.chunk_bytes;
  if (source == call.rank &&
      to == call.input + call.movement.input_at(source) + chunk * work.chunk_bytes)
    return;
  for (uint32_t first = warp::lane() * Piece16::kBytes; first < bytes;
       first += kWarpLanes * kPiecesAtOnce * Piece16::kBytes) {
    Piece16 held[kPiecesAtOnce];
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kPiecesAtOnce; ++k) {
      const uint32_t at = first + k * kWarpLanes * Piece16::kBytes;
      if (at < bytes) held[k] = chunk_piece(work, chunk, source, at, Piece16::bytes_of(bytes - at));
    }
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kPiecesAtOnce; ++k) {
      const uint32_t at = first + k * kWarpLanes * Piece16::kBytes;
      if (at < bytes) store_piece(to + at, held[k], Piece16::bytes_of(bytes - at));
    }
  }
}

/// Folds a chunk of all sources in the order of ranks. Called by a warp.
template <class T>
TOKENYARD_DEVICE void fold_chunk(const RingsWork& work, uint64_t chunk) {
  const CallParams& call = work.call;
  constexpr uint32_t kAtOnce = kFoldsAtOnce;
  const Folding by{call.op, call.factor, call.ranks};
  const uint32_t bytes = work.bytes_of(chunk, call.rank, call.rank);
  std::byte* const to = call.result + call.movement.begin + chunk * work.chunk_bytes;
  for (uint32_t first = warp::lane() * Piece16::kBytes; first < bytes;
       first += kWarpLanes * kAtOnce * Piece16::kBytes) {
    Fold<T, 4> folds[kAtOnce];
    TOKENYARD_KEEP_ROLLED
    for (uint32_t source = 0; source < call.ranks; ++source) {
      Piece16 held[kAtOnce];
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t at = first + k * kWarpLanes * Piece16::kBytes;
        if (at < bytes)
          held[k] = chunk_piece(work, chunk, source, at, Piece16::bytes_of(bytes - at));
      }
      TOKENYARD_UNROLL
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        if (first + k * kWarpLanes * Piece16::kBytes >= bytes) break;
        if (source == 0)
          folds[k].begin(by, held[k]);
        else
          folds[k].add(by, held[k]);
      }
    }
    TOKENYARD_UNROLL
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t at = first + k * kWarpLanes * Piece16::kBytes;
      if (at < bytes) store_piece(to + at, folds[k].end(by), Piece16::bytes_of(bytes - at));
    }
  }
}

/// Tells the sources that a chunk's places are free, if a later chunk needs them. Called by a warp.
TOKENYARD_DEVICE void free_places(const RingsWork& work, uint64_t chunk) {
  const CallParams& call = work.call;
  if (chunk + work.places >= work.chunks()) return;
  warp::sync();
  for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes)
    if (call.movement.sends(rank, call.rank)) {
      fence_release<Scope::sys>();
      store<Order::relaxed, Scope::sys>(
          call.windows.consumed(rank, work.parity, call.rank, work.place_of(chunk)),
          work.word_of(chunk));
    }
}

/// Calls `take(chunk)` for each chunk that has come, until all are claimed. Called by a warp.
template <class Take>
TOKENYARD_DEVICE void receive_chunks(const RingsWork& work, Take take) {
  for (uint64_t claims = 0; claims <= work.chunks(); ++claims) {
    const uint64_t chunk = claim_chunk(work.call, work.parity, Role::receiver);
    if (chunk >= work.chunks() || !await_chunk(work, chunk)) return;
    const bool early = mutated();  // Mutant: places are free before they have been read.
    if (early) free_places(work, chunk);
    take(chunk);
    if (!early) free_places(work, chunk);
  }
}

TOKENYARD_DEVICE void receive(const RingsWork& work) {
  const CallParams& call = work.call;
  if (!call.movement.has_result(call.rank)) return;
  if (!call.movement.reduces)
    return receive_chunks(work, [&](uint64_t chunk) {
      for (uint32_t turn = 0; turn < call.ranks; ++turn) {
        const uint32_t source = (call.rank + turn) % call.ranks;
        if (call.movement.sends(source, call.rank)) copy_chunk(work, chunk, source);
      }
    });
  with_element(call.type, [&](auto element) {
    receive_chunks(work, [&](uint64_t chunk) { fold_chunk<decltype(element)>(work, chunk); });
  });
}

TOKENYARD_DEVICE void exchange_rings(const RingsParams& params) {
  auto& shared = block::shared<CallShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline(call.wait_context);
  if (!begin_call(call, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  if (warp::index() + 1 == warp::count()) {
    if (block::index() == 0) {
      publish_call(call, epoch);
      await_calls(call, epoch, deadline);
    }
    return pass_epoch(call, epoch);
  }
  const RingsWork work{.call = call,
                       .deadline = deadline,
                       .epoch = epoch,
                       .digest = digest_of(call, epoch),
                       .parity = parity_of(epoch),
                       .chunk_bytes = params.chunk_bytes,
                       .places = call.windows.layout.rings.places};
  if (block::index() < params.senders)
    send_chunks(work);
  else
    receive(work);
}

TOKENYARD_DEFINE_KERNEL(rings_kernel, exchange_rings, RingsParams, CallShared, kRingsThreadsMax)

}  // namespace tokenyard::device_collectives
