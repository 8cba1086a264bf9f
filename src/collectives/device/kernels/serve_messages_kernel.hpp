/// Moves the chunks of described messages. See messages.hpp.
#pragma once

#include <algorithm>

#include "collectives/device/kernels/chunks_kernel.hpp"
#include "collectives/device/kernels/device_call_kernel.hpp"
#include "collectives/device/kernels/messages.hpp"
#include "collectives/device/kernels/spans_kernel.hpp"

namespace tokenyard::device_collectives {

/// The facts that the warps of a block share.
struct MessagesWork {
  const MessagesParams& params;
  const CallParams& call;
  const BlockDeadline& deadline;
  const uint64_t epoch;
  const uint32_t digest, parity, places;

  TOKENYARD_DEVICE static MessagesWork of(const MessagesParams& params,
                                          const BlockDeadline& deadline, uint64_t epoch) {
    const WindowLayout& layout = params.call.windows.layout;
    return {.params = params,
            .call = params.call,
            .deadline = deadline,
            .epoch = epoch,
            .digest = params.collective ? digest_of(params.call, epoch) : 0,
            .parity = params.collective ? parity_of(epoch) : 0,
            .places = params.collective ? layout.rings.places : layout.channel_places};
  }
  TOKENYARD_DEVICE uint32_t place_of(uint64_t number) const {
    return static_cast<uint32_t>(number % places);
  }
  /// Returns where `owner` is told that a chunk of `source` has come.
  TOKENYARD_DEVICE Peer<Bytes16> filled(uint32_t owner, uint32_t source, uint64_t number) const {
    const uint32_t place = place_of(number);
    return params.collective ? call.windows.filled(owner, parity, source, place)
                             : call.windows.channel_filled(owner, source, place);
  }
  /// Returns where `owner`, a sender, is told that `by` has read a chunk.
  TOKENYARD_DEVICE Peer<Bytes16> consumed(uint32_t owner, uint32_t by, uint64_t number) const {
    const uint32_t place = place_of(number);
    return params.collective ? call.windows.consumed(owner, parity, by, place)
                             : call.windows.channel_consumed(owner, by, place);
  }
  TOKENYARD_DEVICE Peer<std::byte> chunk(uint32_t owner, uint32_t source, uint64_t number) const {
    const uint32_t place = place_of(number);
    return params.collective ? call.windows.chunk(owner, parity, source, place)
                             : call.windows.channel(owner, source, place);
  }
  /// Returns what a word says of a chunk; never what a word that nobody has written says.
  TOKENYARD_DEVICE Bytes16 word_of(uint64_t number, uint64_t description) const {
    if (params.collective)
      return {{static_cast<uint32_t>(epoch), digest, static_cast<uint32_t>(number / places), 0}};
    return {{static_cast<uint32_t>(number + 1), static_cast<uint32_t>((number + 1) >> 32),
             static_cast<uint32_t>(description >> 32), static_cast<uint32_t>(description)}};
  }
  /// Returns whether a word is of the awaited chunk, whatever message it belongs to.
  TOKENYARD_DEVICE bool is_of(const Bytes16& word, const Bytes16& awaited) const {
    return word.word[0] == awaited.word[0] && word.word[1] == awaited.word[1] &&
           (!params.collective || word.word[2] == awaited.word[2]);
  }
};

/// Returns the counter of a channel, of this block.
TOKENYARD_DEVICE uint64_t* counter_of(const MessagesParams& params, uint32_t block, uint32_t rank,
                                      bool receives) {
  return params.channels + (uint64_t{block} * params.call.ranks + rank) * kRoles +
         static_cast<uint32_t>(receives ? Role::receiver : Role::sender);
}

/// Called by all threads of a block; synchronizes them. Returns false if an earlier call has
/// failed.
TOKENYARD_DEVICE bool begin_messages(const MessagesParams& params, CallShared& shared,
                                     const BlockDeadline& deadline) {
  if (params.collective) return begin_call(params.call, shared, deadline);
  if (thread::index() == 0) {
    const bool retired = params.channels[channel_words(params.call.ranks) - 1] != 0;
    if (retired)
      deadline.fail(Failure::abort_flag,
                    {.phase = static_cast<uint32_t>(WaitPhase::message), .rank = params.call.rank});
    shared = {.epoch = 0, .failed = retired || deadline.failed()};
  }
  block::sync();
  return !shared.failed;
}

/// The messages that a warp serves, and how far it has come with them. All lanes hold the same.
struct ServedMessages {
  uint32_t first, step, count;  ///< indices of its messages
  uint32_t stride;              ///< of chunks: warps that serve the same message
  uint64_t next[kMessagesOfWarp];
  uint64_t base[kMessagesOfWarp];  ///< number of each message's first chunk

  TOKENYARD_DEVICE uint32_t index(uint32_t i) const { return first + i * step; }
};

/// Called by a warp that moves data, before the block's counters are advanced. `blocks`: those that
/// serve messages.
TOKENYARD_DEVICE ServedMessages served_messages(const MessagesParams& params, uint32_t blocks) {
  const uint32_t movers = (warp::count() - 1) * blocks, count = params.count;
  const uint32_t mover = warp::index() * blocks + block::index();
  ServedMessages served{.first = 0, .step = 1, .count = 0, .stride = 1, .next = {}, .base = {}};
  if (count == 0) return served;
  if (movers >= count) {
    served.first = mover % count;
    served.count = 1;
    served.stride = (movers - served.first - 1) / count + 1;
  } else {
    served.first = mover;
    served.step = movers;
    served.count = (count - mover - 1) / movers + 1;
  }
  for (uint32_t i = 0; i < served.count; ++i) {
    const Message& message = params.messages[served.index(i)];
    served.next[i] = movers >= count ? mover / count : 0;
    served.base[i] =
        params.collective
            ? 0
            : message.first + *counter_of(params, block::index(), message.peer, message.receives);
  }
  return served;
}

/// Advances the counters of all blocks that read this block's. Called by the last warp, once the
/// block's other warps have read them.
TOKENYARD_DEVICE void advance_counters(const MessagesParams& params, uint32_t blocks) {
  const uint32_t counters = params.call.ranks * kRoles;
  for (uint32_t i = warp::lane(); i < counters; i += kWarpLanes) {
    const uint32_t rank = i / kRoles;
    const bool receives = i % kRoles == static_cast<uint32_t>(Role::receiver);
    uint64_t chunks = *counter_of(params, block::index(), rank, receives);
    for (uint32_t m = 0; m < params.count; ++m) {
      const Message& message = params.messages[m];
      if (message.peer == rank && message.receives == receives) chunks += message.chunks(false);
    }
    for (uint32_t block = block::index(); block < kBlocksMax; block += blocks)
      *counter_of(params, block, rank, receives) = chunks;
  }
}

/// The result of a look at the messages that a warp serves.
inline constexpr uint32_t kNoMessage = ~0u;

/// Fails the call because another message has come than the one awaited. Called by one thread.
TOKENYARD_COLD void refuse_message(const BlockDeadline& deadline, uint32_t rank, uint64_t expected,
                                   uint64_t seen) {
  deadline.fail(Failure::refused, {.phase = static_cast<uint32_t>(WaitPhase::message),
                                   .rank = rank,
                                   .expected = expected,
                                   .seen = seen});
}

/// Waits until one of the messages can go on. Returns its place among those that the warp serves,
/// or kNoMessage if the wait failed. Called by a warp.
TOKENYARD_DEVICE uint32_t await_message(const MessagesWork& work, const ServedMessages& served) {
  return warp::once([&] {
    uint32_t found = kNoMessage;
    bool wrong = false;
    Awaited what{};
    const bool came = wait_until(work.deadline, what, [&] {
      bool is_first = true;
      for (uint32_t i = 0; i < served.count; ++i) {
        const Message& message = work.params.messages[served.index(i)];
        if (served.next[i] >= message.chunks(work.params.collective)) continue;
        const uint64_t number = served.base[i] + served.next[i];
        if (is_first)
          what = {.phase =
                      static_cast<uint32_t>(message.receives ? WaitPhase::chunk : WaitPhase::place),
                  .rank = message.peer,
                  .expected = number};
        is_first = false;
        found = i;
        if (!message.receives && number < work.places) return true;
        const uint64_t awaited = message.receives ? number : number - work.places;
        const Bytes16 word = load<Order::relaxed, Scope::sys>(
            message.receives ? work.filled(work.call.rank, message.peer, awaited)
                             : work.consumed(work.call.rank, message.peer, awaited));
        const Bytes16 expected = work.word_of(awaited, message.description());
        if (!work.is_of(word, expected)) continue;
        if (!work.params.collective && message.receives) {
          what.seen = uint64_t{word.word[2]} << 32 | word.word[3];
          what.expected = message.description();
          what.rank = message.peer;
          wrong = what.seen != what.expected;
        }
        return true;
      }
      return false;
    });
    if (came && wrong) refuse_message(work.deadline, what.rank, what.expected, what.seen);
    if (!came || wrong) return kNoMessage;
    fence_acquire<Scope::sys>();
    return found;
  });
}

/// Moves a chunk that can be moved, and tells the peer. Called by a warp.
TOKENYARD_DEVICE void move_chunk(const MessagesWork& work, const Message& message, uint64_t chunk,
                                 uint64_t number) {
  const uint32_t rank = work.call.rank, peer = message.peer;
  const uint64_t at = chunk * message.chunk_bytes;
  const auto bytes = static_cast<uint32_t>(
      std::min<uint64_t>(message.chunk_bytes, std::max(message.bytes, at) - at));
  const Peer<std::byte> place =
      message.receives ? work.chunk(rank, peer, number) : work.chunk(peer, rank, number);
  const Peer<Bytes16> published =
      message.receives ? work.consumed(peer, rank, number) : work.filled(peer, rank, number);
  if (message.receives)
    copy_span(Peer<const std::byte>(place.address()), message.data + at, bytes);
  else
    copy_span(static_cast<const std::byte*>(message.data + at), place, bytes);
  warp::sync();
  if (warp::elect()) {
    fence_release<Scope::sys>();
    store<Order::relaxed, Scope::sys>(published, work.word_of(number, message.description()));
  }
}

/// Moves chunks until all messages of this warp are done. Called by a warp.
TOKENYARD_DEVICE void serve_messages(const MessagesWork& work, ServedMessages& served) {
  for (;;) {
    bool all_done = true;
    for (uint32_t i = 0; i < served.count; ++i)
      if (served.next[i] < work.params.messages[served.index(i)].chunks(work.params.collective))
        all_done = false;
    if (all_done) return;
    const uint32_t i = await_message(work, served);
    if (i == kNoMessage) return;
    move_chunk(work, work.params.messages[served.index(i)], served.next[i],
               served.base[i] + served.next[i]);
    served.next[i] += served.stride;
  }
}

/// Copies what this rank keeps for itself. Called by a warp that moves data.
TOKENYARD_DEVICE void keep_own(const MessagesParams& params) {
  if (params.own_input == params.own_result) return;
  const uint32_t movers = (warp::count() - 1) * grid::blocks();
  const uint32_t mover = warp::index() * grid::blocks() + block::index();
  const uint64_t pieces = (params.own_bytes + Piece16::kBytes - 1) / Piece16::kBytes;
  for (uint64_t piece = uint64_t{mover} * kWarpLanes + warp::lane(); piece < pieces;
       piece += uint64_t{movers} * kWarpLanes) {
    const uint64_t at = piece * Piece16::kBytes;
    const auto bytes =
        static_cast<uint32_t>(std::min<uint64_t>(Piece16::kBytes, params.own_bytes - at));
    store_piece(params.own_result + at, load_piece<4>(params.own_input + at, bytes), bytes);
  }
}

}  // namespace tokenyard::device_collectives
