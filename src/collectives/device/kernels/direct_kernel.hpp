/// The kernel of collectives on tensors of the arena. See direct.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/chunks_kernel.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/direct.hpp"
#include "collectives/device/kernels/spans_kernel.hpp"

namespace tokenyard::device_collectives {

enum class DirectBarrier : uint32_t {
  moved = 1,  ///< all warps of the block have moved what they move
};

/// The facts that the warps of a block share.
struct DirectWork {
  const CallParams& call;
  const BlockDeadline& deadline;
  const uint32_t epoch, digest, parity, chunk_bytes;

  TOKENYARD_DEVICE int64_t from_window(const std::byte* tensor) const {
    return tensor - call.windows.peers.mine();
  }
};

/// The tensors of all ranks, as a warp keeps them: those of the first ranks, the input of rank r in
/// lane r and its result in lane kHeld + r.
struct DirectTensors {
  static constexpr uint32_t kHeld = kWarpLanes / 2;

  const DirectWork& work;
  int64_t held = 0;

  TOKENYARD_DEVICE Peer<const std::byte> input_of(uint32_t rank) const {
    return Peer<const std::byte>(at(rank, 0).address());
  }
  TOKENYARD_DEVICE Peer<std::byte> result_of(uint32_t rank) const { return at(rank, 1); }

 private:
  /// Called by a warp.
  TOKENYARD_DEVICE Peer<std::byte> at(uint32_t rank, uint32_t which) const {
    const CallParams& call = work.call;
    const int64_t from_window =
        rank < kHeld
            ? static_cast<int64_t>(warp::shuffle(static_cast<uint64_t>(held), which * kHeld + rank))
            : TensorWord{load<Order::relaxed, Scope::sys>(
                             call.windows.tensors(call.rank, work.parity, rank) + which)}
                  .from_window();
    return call.windows.peers.of(rank) + static_cast<std::ptrdiff_t>(from_window);
  }
};

/// Tells all ranks where this rank's tensors lie. Called by the warp that has published the call,
/// whose fence releases what the caller's stream has done before.
TOKENYARD_DEVICE void publish_tensors(const DirectWork& work) {
  const CallParams& call = work.call;
  const auto word = [&](const std::byte* tensor) {
    return TensorWord::of(work.epoch, work.digest, work.from_window(tensor), grid::blocks()).bits;
  };
  for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes) {
    const Peer<Bytes16> at = call.windows.tensors(rank, work.parity, call.rank);
    store<Order::relaxed, Scope::sys>(at, word(call.input));
    store<Order::relaxed, Scope::sys>(at + 1, word(call.result));
  }
}

/// Waits for a word of the call; returns the word, which is of none if the wait failed.
TOKENYARD_DEVICE TensorWord await_tensor(const DirectWork& work, Peer<Bytes16> at, uint32_t rank,
                                         WaitPhase phase) {
  Awaited what{.phase = static_cast<uint32_t>(phase), .rank = rank, .expected = work.epoch};
  TensorWord word{};
  const bool came = wait_until(work.deadline, what, [&] {
    word = {load<Order::relaxed, Scope::sys>(at)};
    what.seen = word.bits.word[0];
    return word.is_of(work.epoch, work.digest);
  });
  return came ? word : TensorWord{};
}

/// Waits until all ranks have begun the call. Called by a warp; returns whether they have.
TOKENYARD_DEVICE bool await_tensors(DirectTensors& tensors) {
  const DirectWork& work = tensors.work;
  const CallParams& call = work.call;
  const uint32_t which = warp::lane() / DirectTensors::kHeld;
  bool all = true;
  for (uint32_t first = 0; first < call.ranks; first += DirectTensors::kHeld) {
    const uint32_t rank = first + warp::lane() % DirectTensors::kHeld;
    bool came = true;
    if (rank < call.ranks) {
      const TensorWord word =
          await_tensor(work, call.windows.tensors(call.rank, work.parity, rank) + which, rank,
                       WaitPhase::tensors);
      came = word.is_of(work.epoch, work.digest);
      if (first == 0) tensors.held = word.from_window();
    }
    all = warp::all(came) && all;
  }
  fence_acquire<Scope::sys>();
  warp::sync();
  return all;
}

/// Pushes this rank's messages. Called by a warp.
TOKENYARD_DEVICE void push_messages(const DirectTensors& tensors, ChunkClaims& claims) {
  const DirectWork& work = tensors.work;
  const CallParams& call = work.call;
  if (!call.movement.has_input(call.rank)) return;
  const uint64_t bytes = call.movement.bytes();
  for (uint64_t taken = 0; taken * work.chunk_bytes < bytes + work.chunk_bytes; ++taken) {
    const uint64_t begin = claims.take() * work.chunk_bytes;
    if (begin >= bytes) return;
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(work.chunk_bytes, bytes - begin));
    for (uint32_t turn = 1; turn <= call.ranks; ++turn) {
      const uint32_t rank = (call.rank + turn) % call.ranks;  // Every rank begins with another one.
      if (!call.movement.sends(call.rank, rank)) continue;
      const std::byte* const from = call.input + call.movement.input_at(rank) + begin;
      const Peer<std::byte> to =
          tensors.result_of(rank) +
          static_cast<std::ptrdiff_t>(call.movement.result_at(call.rank) + begin);
      if (from != to.address()) copy_span(from, to, count);
    }
  }
}

/// The bytes that a rank folds: of each input, and of each result that gets them.
struct DirectShare {
  uint64_t input_at, result_at, bytes;

  TOKENYARD_DEVICE static DirectShare of(const CallParams& call) {
    const Movement& movement = call.movement;
    if (movement.input_has_parts)
      return {.input_at = movement.input_at(call.rank), .result_at = 0, .bytes = movement.bytes()};
    // Every operation's ranks share the work, also where only the root gets the result.
    constexpr uint64_t kUnit = 16;  // A multiple of every element's size.
    const uint64_t whole = movement.bytes();
    const uint64_t share = (whole + call.ranks * kUnit - 1) / (call.ranks * kUnit) * kUnit;
    const uint64_t begin = std::min(call.rank * share, whole);
    return {.input_at = begin, .result_at = begin, .bytes = std::min(share, whole - begin)};
  }
};

/// The spans that a rank folds at a time: of each input, and of each result that gets them.
struct DirectSpans {
  const DirectTensors& tensors;
  uint64_t input_at, result_at;

  TOKENYARD_DEVICE Peer<const std::byte> source(uint32_t rank) const {
    return tensors.input_of(rank) + static_cast<std::ptrdiff_t>(input_at);
  }
  TOKENYARD_DEVICE uint32_t count() const {
    const CallParams& call = tensors.work.call;
    return call.movement.input_has_parts || call.movement.only_to_root ? 1 : call.ranks;
  }
  TOKENYARD_DEVICE Peer<std::byte> operator()(uint32_t turn) const {
    const CallParams& call = tensors.work.call;
    const uint32_t rank =
        call.movement.only_to_root ? call.movement.root : (call.rank + turn) % call.ranks;
    return tensors.result_of(rank) + static_cast<std::ptrdiff_t>(result_at);
  }
};

/// Returns whether what a rank folds begins at multiples of 16 in all tensors. Called by a warp.
TOKENYARD_DEVICE bool are_aligned(const DirectSpans& spans) {
  uint32_t low = 0;
  for (uint32_t rank = 0; rank < spans.tensors.work.call.ranks; ++rank)
    low |= pieces::low_bits(spans.source(rank));
  for (uint32_t turn = 0; turn < spans.count(); ++turn) low |= pieces::low_bits(spans(turn));
  return low % Piece16::kBytes == 0;
}

/// Folds this rank's share. Called by a warp.
TOKENYARD_DEVICE void fold_share(const DirectTensors& tensors, ChunkClaims& claims) {
  const DirectWork& work = tensors.work;
  const CallParams& call = work.call;
  const DirectShare share = DirectShare::of(call);
  const bool aligned = are_aligned({tensors, share.input_at, share.result_at});
  with_element(call.type, [&](auto element) {
    for (uint64_t taken = 0; taken * work.chunk_bytes < share.bytes + work.chunk_bytes; ++taken) {
      const uint64_t begin = claims.take() * work.chunk_bytes;
      if (begin >= share.bytes) return;
      const DirectSpans those{tensors, share.input_at + begin, share.result_at + begin};
      fold_span<decltype(element)>(
          {call.op, call.factor, call.ranks},
          static_cast<uint32_t>(std::min<uint64_t>(work.chunk_bytes, share.bytes - begin)), aligned,
          [&](uint32_t rank) { return those.source(rank); }, those);
    }
  });
}

/// Tells all ranks that this block has moved all it moves, and waits for blocks of all ranks: of
/// all of them, this block for every grid::blocks()-th. Called by a warp.
TOKENYARD_DEVICE void meet_blocks(const DirectWork& work) {
  const CallParams& call = work.call;
  if (work.deadline.failed()) return;
  const auto word = TensorWord::of(work.epoch, work.digest, 0, 0).bits;
  fence_release<Scope::sys>();
  for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes)
    store<Order::relaxed, Scope::sys>(
        call.windows.done(rank, work.parity, call.rank, block::index()), word);
  if (mutated()) return;  // Mutant: a call ends without its peers.
  for (uint32_t rank = warp::lane(); rank < call.ranks; rank += kWarpLanes) {
    const TensorWord input = await_tensor(work, call.windows.tensors(call.rank, work.parity, rank),
                                          rank, WaitPhase::tensors);
    for (uint32_t block = block::index(); block < input.blocks(); block += grid::blocks())
      if (!await_tensor(work, call.windows.done(call.rank, work.parity, rank, block), rank,
                        WaitPhase::done)
               .is_of(work.epoch, work.digest))
        return;
  }
  // Acquires the results, and that nobody reads the input any more.
  fence_acquire<Scope::sys>();
}

TOKENYARD_DEVICE void exchange_direct(const DirectParams& params) {
  auto& shared = block::shared<CallShared>();
  const CallParams& call = params.call;
  const BlockDeadline deadline = begin_deadline(call);
  if (!begin_call(call, shared, deadline)) return;
  const uint64_t epoch = shared.epoch;
  const DirectWork work{.call = call,
                        .deadline = deadline,
                        .epoch = static_cast<uint32_t>(epoch),
                        .digest = digest_of(call, epoch),
                        .parity = parity_of(epoch),
                        .chunk_bytes = params.chunk_bytes};
  if (warp::index() + 1 == warp::count()) {
    if (block::index() == 0) {
      publish_call(call, epoch);
      publish_tensors(work);
      await_calls(call, epoch, deadline);
    }
    pass_epoch(call, epoch);
    NamedBarrier(DirectBarrier::moved).sync(block::threads());
    return meet_blocks(work);
  }
  DirectTensors tensors{.work = work};
  ChunkClaims claims(call, work.parity, Role::sender);
  if (await_tensors(tensors)) {
    if (call.movement.reduces)
      fold_share(tensors, claims);
    else
      push_messages(tensors, claims);
  }
  NamedBarrier(DirectBarrier::moved).sync(block::threads());
}

TOKENYARD_DEFINE_KERNEL(direct_kernel, exchange_direct, DirectParams, CallShared, kDirectThreadsMax)

}  // namespace tokenyard::device_collectives
