/// The kernel of collectives of many bytes on tensors anywhere. See rings.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/chunks_kernel.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/rings.hpp"
#include "collectives/device/kernels/spans_kernel.hpp"

namespace tokenyard::device_collectives {

/// A chunk of every message.
struct RingChunk {
  uint64_t begin;       ///< bytes of a message before it
  uint32_t place, lap;  ///< of the rings
};

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
  /// Divides, which takes a GPU long: once per chunk.
  TOKENYARD_DEVICE RingChunk chunk(uint64_t index) const {
    const auto lap = static_cast<uint32_t>(index / places);
    return {.begin = index * chunk_bytes,
            .place = static_cast<uint32_t>(index - uint64_t{lap} * places),
            .lap = lap};
  }
  /// Returns the bytes of a chunk of the message between two ranks; 0 beyond its end.
  TOKENYARD_DEVICE uint32_t bytes_of(const RingChunk& chunk, uint32_t source,
                                     uint32_t destination) const {
    const uint64_t bytes = call.movement.bytes_between(source, destination);
    return static_cast<uint32_t>(
        std::min<uint64_t>(chunk_bytes, std::max(bytes, chunk.begin) - chunk.begin));
  }
  /// Returns what a `filled` or `consumed` word of a lap says.
  TOKENYARD_DEVICE Bytes16 word_of(uint32_t lap) const {
    return {{static_cast<uint32_t>(epoch), digest, lap, 0}};
  }
  /// Returns where a rank's ring has a chunk of a source.
  TOKENYARD_DEVICE Peer<std::byte> ring(uint32_t rank, uint32_t source,
                                        const RingChunk& chunk) const {
    return call.windows.chunk(rank, parity, source, chunk.place);
  }
};

/// Waits for the word of a lap. Relaxed polls; one acquire follows them.
TOKENYARD_DEVICE bool await_word(const RingsWork& work, Peer<Bytes16> at, uint32_t lap,
                                 uint32_t rank, WaitPhase phase) {
  const Bytes16 expected = work.word_of(lap);
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = lap};
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
TOKENYARD_DEVICE bool await_places(const RingsWork& work, const RingChunk& chunk) {
  if (chunk.lap == 0) return true;
  const CallParams& call = work.call;
  bool all = true;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    bool came = true;
    if (rank < call.ranks && call.movement.sends(call.rank, rank))
      came = await_word(work, call.windows.consumed(call.rank, work.parity, rank, chunk.place),
                        chunk.lap - 1, rank, WaitPhase::place);
    all = warp::all(came) && all;
  }
  warp::sync();
  return all;
}

/// Sends chunks until all are claimed. Called by a warp.
TOKENYARD_DEVICE void send_chunks(const RingsWork& work) {
  const CallParams& call = work.call;
  if (!call.movement.has_input(call.rank)) return;
  const uint64_t chunks = work.chunks();
  ChunkClaims claims(call, work.parity, Role::sender);
  for (uint64_t taken = 0; taken <= chunks; ++taken) {
    const uint64_t index = claims.take();
    if (index >= chunks) return;
    const RingChunk chunk = work.chunk(index);
    if (!await_places(work, chunk)) return;
    for (uint32_t turn = 1; turn < call.ranks; ++turn) {
      const uint32_t rank = (call.rank + turn) % call.ranks;  // Every rank begins with another one.
      if (call.movement.sends(call.rank, rank))
        copy_span(call.input + call.movement.input_at(rank) + chunk.begin,
                  work.ring(rank, call.rank, chunk), work.bytes_of(chunk, call.rank, rank));
    }
    warp::sync();
    // Each lane's word is a release of what all lanes have stored, and of their loads of the input.
    for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes)
      if (call.movement.sends(call.rank, rank)) {
        fence_release<Scope::sys>();
        store<Order::relaxed, Scope::sys>(
            call.windows.filled(rank, work.parity, call.rank, chunk.place),
            work.word_of(chunk.lap));
      }
  }
}

/// Waits for a chunk of every source. Called by a warp.
TOKENYARD_DEVICE bool await_chunk(const RingsWork& work, const RingChunk& chunk) {
  const CallParams& call = work.call;
  bool all = true;
  for (uint32_t first = 0; first < call.ranks; first += kWarpLanes) {
    const uint32_t rank = first + warp::lane();
    bool came = true;
    // Mutant: a receiver does not wait for its own rank's senders.
    if (rank < call.ranks && call.movement.sends(rank, call.rank) &&
        !(rank == call.rank && mutated()))
      came = await_word(work, call.windows.filled(call.rank, work.parity, rank, chunk.place),
                        chunk.lap, rank, WaitPhase::chunk);
    all = warp::all(came) && all;
  }
  warp::sync();
  return all;
}

/// Copies a chunk of a source to its place in the result. Called by a warp.
TOKENYARD_DEVICE void copy_chunk(const RingsWork& work, const RingChunk& chunk, uint32_t source) {
  const CallParams& call = work.call;
  const uint32_t bytes = work.bytes_of(chunk, source, call.rank);
  std::byte* const to = call.result + call.movement.result_at(source) + chunk.begin;
  if (source != call.rank)
    return copy_span(Peer<const std::byte>(work.ring(call.rank, source, chunk).address()), to,
                     bytes);
  const std::byte* const from = call.input + call.movement.input_at(source) + chunk.begin;
  if (from != to) copy_span(from, to, bytes);
}

/// The spans of a chunk that are folded, and the one of the result.
struct RingSpans {
  const RingsWork& work;
  const RingChunk& chunk;
  const std::byte* own;
  std::byte* result;

  TOKENYARD_DEVICE Peer<const std::byte> source(uint32_t rank) const {
    return Peer<const std::byte>(
        rank == work.call.rank ? own : work.ring(work.call.rank, rank, chunk).address());
  }
  TOKENYARD_DEVICE uint32_t count() const { return 1; }
  TOKENYARD_DEVICE std::byte* operator()(uint32_t) const { return result; }
};

/// Folds a chunk of all sources in the order of ranks. Called by a warp.
template <class T>
TOKENYARD_DEVICE void fold_chunk(const RingsWork& work, const RingChunk& chunk) {
  const CallParams& call = work.call;
  const RingSpans those{
      .work = work,
      .chunk = chunk,
      .own = call.input + call.movement.input_at(call.rank) + chunk.begin,
      .result = call.result + call.movement.begin + chunk.begin,
  };
  fold_span<T>(
      {call.op, call.factor, call.ranks}, work.bytes_of(chunk, call.rank, call.rank),
      spans::are_aligned(those.own, those.result),
      [&](uint32_t rank) { return those.source(rank); }, those);
}

/// Tells the sources that a chunk's places are free, if a later chunk needs them. Called by a warp.
TOKENYARD_DEVICE void free_places(const RingsWork& work, const RingChunk& chunk) {
  const CallParams& call = work.call;
  if (chunk.begin + uint64_t{work.places} * work.chunk_bytes >= call.movement.bytes()) return;
  warp::sync();
  for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes)
    if (call.movement.sends(rank, call.rank)) {
      fence_release<Scope::sys>();
      store<Order::relaxed, Scope::sys>(
          call.windows.consumed(rank, work.parity, call.rank, chunk.place),
          work.word_of(chunk.lap));
    }
}

/// Calls `take(chunk)` for each chunk that has come, until all are claimed. Called by a warp.
template <class Take>
TOKENYARD_DEVICE void receive_chunks(const RingsWork& work, Take take) {
  const uint64_t chunks = work.chunks();
  ChunkClaims claims(work.call, work.parity, Role::receiver);
  for (uint64_t taken = 0; taken <= chunks; ++taken) {
    const uint64_t index = claims.take();
    if (index >= chunks) return;
    const RingChunk chunk = work.chunk(index);
    if (!await_chunk(work, chunk)) return;
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
    return receive_chunks(work, [&](const RingChunk& chunk) {
      for (uint32_t turn = 0; turn < call.ranks; ++turn) {
        const uint32_t source = (call.rank + turn) % call.ranks;
        if (call.movement.sends(source, call.rank)) copy_chunk(work, chunk, source);
      }
    });
  with_element(call.type, [&](auto element) {
    receive_chunks(work,
                   [&](const RingChunk& chunk) { fold_chunk<decltype(element)>(work, chunk); });
  });
}

TOKENYARD_DEVICE void exchange_rings(const RingsParams& params) {
  auto& shared = block::shared<CallShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline = begin_deadline(call);
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
