/// The kernel that sends and receives messages to ranks without load/store. See messages.hpp for
/// the protocol.
#pragma once

#include "expert_parallel/low_latency/kernels/call_kernel.hpp"
#include "expert_parallel/low_latency/kernels/messages.hpp"

namespace tokenyard::low_latency {

struct MessagesShared {
  uint32_t goes, comes;  ///< whether the block's message is sent, and whether the peer's has come
};

/// A block's put peer in a call.
struct PutCall {
  const MessagesParams& params;
  MessagesShared& shared;
  Call call;       ///< its epoch is that of the message
  uint32_t index;  ///< of the peer

  TOKENYARD_DEVICE const PutPaths& paths() const { return params.paths; }
  TOKENYARD_DEVICE const PutPeer& peer() const { return paths().peers[index]; }
  TOKENYARD_DEVICE PutState& state() const { return paths().states[index]; }
  TOKENYARD_DEVICE uint32_t channel() const { return static_cast<uint32_t>(params.channel); }
  TOKENYARD_DEVICE NetworkQueue queue() const {
    return paths().queues.of(peer().rank, paths().queue);
  }
  TOKENYARD_DEVICE const uint64_t* word(size_t at) const {
    return reinterpret_cast<const uint64_t*>(paths().memory + at);
  }
  /// Returns the epoch that a word of epochs has reached. Acquires what the signals have released.
  TOKENYARD_DEVICE uint32_t epoch_in(size_t at) const {
    return static_cast<uint32_t>(load<Order::acquire, Scope::sys>(word(at))) + paths().first_epoch;
  }
  TOKENYARD_DEVICE bool is_masked() const {
    const uint32_t failure = failure_of(params.call, peer().rank);
    return failure != static_cast<uint32_t>(Failure::none) && failure != call.differs_since_now();
  }
};

TOKENYARD_DEVICE bool has_reached(uint32_t epoch, uint32_t awaited) {
  return static_cast<int32_t>(epoch - awaited) >= 0;
}

/// Posts a few requests to the peer's queue. Called by the block's first thread. Masks the peer if
/// the queue takes none any more.
class Poster {
 public:
  static constexpr uint32_t kAtOnce = 2;  ///< requests that find room without a wait

  TOKENYARD_DEVICE explicit Poster(const PutCall& put)
      : put_(put),
        context_(put.params.call.masks.wait_context(put.peer().rank)),
        deadline_(context_, put.call.start_ns) {
    context_.timeout_ns = uint64_t{put.params.call.timeout} * kTimeUnitNs * kTimesLate;
    context_.abort_flag = put.paths().workspace->never;
  }
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;

  /// Returns whether `kAtOnce` more requests have room.
  TOKENYARD_DEVICE bool has_room() const {
    const NetworkQueue queue = put_.queue();
    return queue.has_read(queue.posted() + kAtOnce - QueuePair::kSlots);
  }
  /// Puts, and adds to the peer's word behind it.
  TOKENYARD_DEVICE bool put_and_signal(size_t to, const std::byte* from, uint32_t bytes,
                                       size_t word, uint64_t addend) const {
    const NetworkSource source{.key = put_.paths().key, .bytes = bytes, .from = from};
    return put_.queue().put_and_signal(deadline_, kPhase, put_.peer().memory + to, source,
                                       put_.peer().memory + word, addend);
  }
  TOKENYARD_DEVICE bool signal(size_t to, uint64_t addend) const {
    return put_.queue().signal(deadline_, kPhase, put_.peer().memory + to, addend);
  }

 private:
  static constexpr auto kPhase = static_cast<uint32_t>(Phase::put_room);

  const PutCall& put_;
  WaitContext context_;
  const Deadline deadline_;
};

/// Returns the epoch of the message to send or to receive. Dispatch and combine advance their
/// epochs when they send and when they receive; weights travel before both.
TOKENYARD_DEVICE uint32_t message_epoch(const MessagesParams& params, Kind kind, bool sending) {
  const Progress& progress = params.call.workspace->progress[static_cast<uint32_t>(kind)][0];
  if (params.channel == Channel::weights) return progress.sent + 1;
  return sending ? progress.sent : progress.received + 1;
}

/// Tells the peer up to which epoch its landings are free, if it does not know. Called by the
/// block's first thread; the block has read what it needs of them.
TOKENYARD_DEVICE void credit(const PutCall& put, const Poster& poster, uint32_t epoch) {
  uint32_t& credited = put.state().credited[put.channel()];
  if (has_reached(credited, epoch)) return;
  const uint32_t more = epoch - credited;
  if (poster.signal(MessageLayout::credited(put.peer().there, put.params.channel), more))
    credited = epoch;
}

/// Credits messages that have come after the calls which awaited them. Called between polls: two
/// ranks that wait for each other's landings are released by this.
TOKENYARD_DEVICE void credit_late(const PutCall& put, const Poster& poster) {
  const uint32_t arrived = put.epoch_in(MessageLayout::arrived(put.index, put.params.channel));
  const uint32_t ended = message_epoch(put.params, put.call.kind, false) - 1;
  if (poster.has_room()) credit(put, poster, has_reached(arrived, ended) ? ended : arrived);
}

/// Calls `body(put)` for each peer of the block.
template <class Body>
TOKENYARD_DEVICE void each_peer(const PutCall& one, Body body) {
  for (uint32_t index = block::index(); index < one.paths().count; index += grid::blocks())
    body(PutCall{one.params, one.shared, one.call, index});
}

/// Shows the block's peers that this rank lives while it waits, passes their heartbeats on, and
/// credits their late messages. Used by the block's first thread.
class Beats {
 public:
  TOKENYARD_DEVICE explicit Beats(const PutCall& put)
      : put_(put), last_ns_(put.call.start_ns), polls_left_(put.params.call.polls_per_check) {}

  /// Called at every poll.
  TOKENYARD_DEVICE void exchange() {
    const CallParams& common = put_.params.call;
    if (--polls_left_ != 0) return;
    polls_left_ = common.polls_per_check;
    const uint64_t now = now_ns();
    const uint64_t apart = uint64_t{std::max(1u, common.timeout / (2 * kHeartbeats))} * kTimeUnitNs;
    const bool is_due = now - last_ns_ >= apart;
    if (is_due) last_ns_ = now;
    each_peer(put_, [&](const PutCall& put) {
      pass_on(put);
      if (low_latency::is_masked(common, put.peer().rank)) return;
      const Poster poster(put);
      if (put.index != put_.index) credit_late(put, poster);
      if (is_due && poster.has_room()) poster.signal(MessageLayout::beats(put.peer().there), 1);
    });
  }

 private:
  TOKENYARD_DEVICE static void pass_on(const PutCall& put) {
    // Heartbeats are relaxed: they order no other data.
    const auto heard = static_cast<uint32_t>(
        load<Order::relaxed, Scope::sys>(put.word(MessageLayout::beats(put.index))));
    if (heard == put.state().beats_heard) return;
    put.state().beats_heard = heard;
    const CallParams& common = put.params.call;
    store<Order::relaxed, Scope::sys>(common.windows.heartbeat(common.rank, put.peer().rank),
                                      heard);
  }

  const PutCall& put_;
  uint64_t last_ns_;
  uint32_t polls_left_;
};

/// Waits until the peer's message has landed; returns false if the peer is masked, by this call or
/// earlier. Called by the block's first thread. Credits messages that come too late meanwhile.
TOKENYARD_DEVICE bool await_message(const PutCall& put, Phase phase) {
  if (put.is_masked()) return false;
  const Poster poster(put);
  Beats beats(put);
  const uint32_t epoch = put.call.epoch();
  const auto begin = static_cast<uint32_t>(cycles());
  const bool come = put.call.await(phase, put.peer().rank, epoch, [&](uint64_t& seen) {
    const uint32_t arrived = put.epoch_in(MessageLayout::arrived(put.index, put.params.channel));
    seen = arrived;
    if (has_reached(arrived, epoch)) return true;
    credit_late(put, poster);
    beats.exchange();
    return false;
  });
  if (put.params.waited != nullptr)
    add<Order::relaxed, Scope::gpu>(put.params.waited + put.peer().rank,
                                    static_cast<uint32_t>(cycles()) - begin);
  return come;
}

/// Waits until the message's landing, its stage and two requests have room. Called by the block's
/// first thread. Returns false if the peer is masked.
TOKENYARD_DEVICE bool await_places(const PutCall& put) {
  if (put.is_masked()) return false;
  const Poster poster(put);
  Beats beats(put);
  const uint32_t parity = put.call.parity();
  const uint32_t last = put.state().sent[put.channel()][parity];
  const uint32_t ticket = put.state().ticket[put.channel()][parity];
  const bool is_first = last == put.paths().first_epoch;  // Then no request has read the stage.
  return put.call.await(Phase::put_room, put.peer().rank, last, [&](uint64_t& seen) {
    const uint32_t credited = put.epoch_in(MessageLayout::credited(put.index, put.params.channel));
    seen = credited;
    if (has_reached(credited, last) && (is_first || put.queue().has_read(ticket)) &&
        poster.has_room())
      return true;
    credit_late(put, poster);
    beats.exchange();
    return false;
  });
}

/// Calls `copy(token, place)` for tokens of which `has(token)` holds, in turn by the warps of the
/// block; `place` counts those before. Returns their number. Called by the whole block. `note` is
/// called by all lanes with the index and bits of each 32 tokens.
template <class Has, class Copy, class Note>
TOKENYARD_DEVICE uint32_t each_token(uint32_t tokens, Has has, Copy copy, Note note) {
  uint32_t before = 0;
  for (uint32_t base = 0; base < tokens; base += kWarpLanes) {
    const uint32_t token = base + warp::lane();
    const uint32_t bits = warp::ballot(token < tokens && has(token));
    note(base / kWarpLanes, bits);
    for (uint32_t left = bits; left != 0; left &= left - 1, ++before)
      if (before % warp::count() == warp::index()) copy(base + first_bit(left), before);
  }
  return before;
}

/// Returns the pieces of a row in a message: its data, then its scales.
TOKENYARD_DEVICE uint32_t row_pieces(const RowLayout& row) {
  return row.data_pieces() + (row.is_fp8() ? row.units() : 0);
}
/// Returns the index in a staged row of a piece in a message.
TOKENYARD_DEVICE uint32_t staged_piece(const RowLayout& row, uint32_t piece) {
  const uint32_t data = row.data_pieces();
  return piece < data ? piece : row.scale_piece(piece - data);
}

/// Returns whether a token goes to the rank that its ids words are for. Weak: the words were
/// written by an earlier kernel, or before a barrier.
TOKENYARD_DEVICE bool names_expert(Peer<Bytes16> ids, uint32_t token, uint32_t topk) {
  const uint32_t words = packed_ids_of(topk);
  for (uint32_t word = 0; word < words; ++word) {
    const PackedIds packed{
        load_vector(Peer<const Bytes16>((ids + (token * words + word)).address()))};
    for (uint32_t place = 0; place < PackedIds::kIds; ++place)
      if (packed.get(place) != PackedIds::kNone) return true;
  }
  return false;
}

/// Returns whether this rank has a row of another rank's token.
TOKENYARD_DEVICE bool has_row(const PutCall& put, uint32_t token) {
  const MessagesParams& params = put.params;
  const size_t first = (size_t{put.peer().rank} * params.tokens_max + token) * params.topk;
  for (uint32_t choice = 0; choice < params.topk; ++choice)
    if (params.row_slot[first + choice] >= 0) return true;
  return false;
}

TOKENYARD_DEVICE Bytes16* pieces_at(std::byte* message, size_t at) {
  return reinterpret_cast<Bytes16*>(message + at);
}

TOKENYARD_DEVICE void pack_weights(const PutCall& put, std::byte* message) {
  auto* const to =
      reinterpret_cast<float*>(message + put.paths().layout.weights_at(put.params.channel));
  const uint32_t count = put.params.tokens * put.params.topk;
  for (uint32_t i = thread::index(); i < count; i += block::threads())
    to[i] = load_cached(put.params.weights + i);
}

/// Packs ids and rows from the peer's mirror. Called by the whole block; returns the bytes.
TOKENYARD_DEVICE size_t pack_rows(const PutCall& put, std::byte* message) {
  const MessagesParams& params = put.params;
  const Windows& windows = params.call.windows;
  const MessageLayout& layout = put.paths().layout;
  const uint32_t self = params.call.rank, parity = put.call.parity(), rank = put.peer().rank;
  const bool has_weights = params.publishes;
  const Peer<Bytes16> ids = windows.ids(rank, parity, self);
  for (uint32_t i = thread::index(); i < layout.ids_words(); i += block::threads())
    store_vector(pieces_at(message, MessageLayout::ids_at()) + i,
                 load_vector(Peer<const Bytes16>((ids + i).address())));
  if (has_weights) pack_weights(put, message);
  const uint32_t pieces = row_pieces(params.row);
  const size_t rows_at = layout.rows_at(has_weights);
  const uint32_t rows = each_token(
      params.tokens_max, [&](uint32_t token) { return names_expert(ids, token, params.topk); },
      [&](uint32_t token, uint32_t place) {
        const Peer<Bytes16> row =
            windows.same_place(windows.peers.of(rank), windows.row_here(parity, self, token));
        Bytes16* const to = pieces_at(message, rows_at) + size_t{place} * pieces;
        for (uint32_t piece = warp::lane(); piece < pieces; piece += kWarpLanes)
          store_vector(
              to + piece,
              load_vector(Peer<const Bytes16>((row + staged_piece(params.row, piece)).address())));
      },
      [](uint32_t, uint32_t) {});
  return rows_at + size_t{rows} * pieces * sizeof(Bytes16);
}

/// Returns the pieces of a partial sum, and the first one's index in its place.
TOKENYARD_DEVICE uint32_t sum_pieces(const SumsLayout& sums, bool logfmt) {
  return logfmt ? sums.logfmt_pieces : sums.bf16_pieces;
}
TOKENYARD_DEVICE uint32_t first_piece(const SumsLayout& sums, bool logfmt) {
  return logfmt ? sums.logfmt_first : 0;
}

TOKENYARD_DEVICE size_t pack_sums(const PutCall& put, std::byte* message) {
  const MessagesParams& params = put.params;
  const Windows& windows = params.call.windows;
  const uint32_t self = params.call.rank, parity = put.call.parity(), rank = put.peer().rank;
  const uint32_t pieces = sum_pieces(params.sums, params.logfmt);
  auto* const bits = reinterpret_cast<uint32_t*>(message + MessageLayout::bits_at());
  const size_t sums_at = put.paths().layout.sums_at();
  const uint32_t sums = each_token(
      params.tokens_max, [&](uint32_t token) { return has_row(put, token); },
      [&](uint32_t token, uint32_t place) {
        const Peer<Bytes16> sum =
            windows.partial(rank, parity, self, token) + first_piece(params.sums, params.logfmt);
        Bytes16* const to = pieces_at(message, sums_at) + size_t{place} * pieces;
        for (uint32_t piece = warp::lane(); piece < pieces; piece += kWarpLanes)
          store_vector(to + piece, load_vector(Peer<const Bytes16>((sum + piece).address())));
      },
      [&](uint32_t word, uint32_t has) {
        if (thread::index() == 0) bits[word] = has;
      });
  return sums_at + size_t{sums} * pieces * sizeof(Bytes16);
}

TOKENYARD_DEVICE size_t pack(const PutCall& put, std::byte* message) {
  switch (put.params.channel) {
    case Channel::rows:
      return pack_rows(put, message);
    case Channel::sums:
      return pack_sums(put, message);
    case Channel::weights:
      break;
  }
  pack_weights(put, message);
  return put.paths().layout.weights_at(Channel::weights) + put.paths().layout.weights_bytes();
}

/// Puts the packed message and tells the peer. Called by the block's first thread.
TOKENYARD_DEVICE void post_message(const PutCall& put, const std::byte* message, uint32_t bytes) {
  const Poster poster(put);
  const uint32_t epoch = put.call.epoch(), parity = put.call.parity(), number = put.channel();
  const uint32_t there = put.peer().there;
  PutState& state = put.state();
  if (!poster.put_and_signal(put.paths().layout.landing(there, put.params.channel, parity), message,
                             bytes, MessageLayout::arrived(there, put.params.channel),
                             epoch - state.signalled[number]))
    return;
  state.ticket[number][parity] = put.queue().posted();
  state.sent[number][parity] = state.signalled[number] = epoch;
}

/// Lets the sending kernels of later calls write the peer's mirror: what they wrote is in a
/// message. Called by the block's first thread.
TOKENYARD_DEVICE void free_mirror(const PutCall& put) {
  const auto sent = [&](Kind kind) {
    return put.params.call.workspace->progress[static_cast<uint32_t>(kind)][0].sent;
  };
  // Relaxed: kernels of this stream read it.
  store<Order::relaxed, Scope::sys>(put.params.call.windows.drained_here(put.peer().rank),
                                    Drained{sent(Kind::dispatch), sent(Kind::combine)});
}

/// Sends the peer's message. Called by the whole block.
TOKENYARD_DEVICE void send_message(const PutCall& put) {
  const MessagesParams& params = put.params;
  block::sync();  // The previous peer's answer has been read.
  if (thread::index() == 0) put.shared.goes = await_places(put) ? 1 : 0;
  block::sync();
  if (put.shared.goes != 0) {
    std::byte* const message = put.paths().stage(put.index, params.channel, put.call.parity());
    const size_t bytes = pack(put, message);
    if (thread::index() == 0)
      *reinterpret_cast<MessageHeader*>(message) = {
          .epoch = put.call.epoch(),
          .format = params.channel == Channel::rows ? static_cast<uint32_t>(params.row.format())
                                                    : uint32_t{params.logfmt},
          .tokens = params.tokens,
          .weights = params.publishes ? 1 + params.batch : 0};
    block::sync();
    if (thread::index() == 0) post_message(put, message, static_cast<uint32_t>(bytes));
  }
  if (thread::index() == 0 && params.channel != Channel::weights) free_mirror(put);
}

TOKENYARD_DEVICE void unpack_weights(const PutCall& put, const std::byte* message,
                                     const MessageHeader& header, uint32_t stamp) {
  const auto* const from =
      reinterpret_cast<const float*>(message + put.paths().layout.weights_at(put.params.channel));
  const Peer<Stamped> to =
      put.params.call.windows.weights_here(header.weights - 1, put.peer().rank, 0);
  const uint32_t count = header.tokens * put.params.topk;
  for (uint32_t i = thread::index(); i < count; i += block::threads())
    publish_weight(to + i, stamp, from[i]);
}

/// Stores ids, weights and rows to this rank's window. Called by the whole block. Rows in another
/// format than this rank's are left out: the ids tell of the difference.
TOKENYARD_DEVICE void unpack_rows(const PutCall& put, const std::byte* message,
                                  const MessageHeader& header) {
  const MessagesParams& params = put.params;
  const Windows& windows = params.call.windows;
  const MessageLayout& layout = put.paths().layout;
  const uint32_t parity = put.call.parity(), rank = put.peer().rank;
  const Peer<Bytes16> ids = windows.ids(params.call.rank, parity, rank);
  const auto* const pieces = reinterpret_cast<const Bytes16*>(message);
  for (uint32_t i = thread::index(); i < layout.ids_words(); i += block::threads())
    store<Order::relaxed, Scope::sys>(
        ids + i, load_vector(pieces + MessageLayout::ids_at() / sizeof(Bytes16) + i));
  if (header.weights != 0) unpack_weights(put, message, header, weights_stamp(put.call.epoch()));
  block::sync();  // The ids are read from the window, which is nearer.
  const bool same = header.format == static_cast<uint32_t>(params.row.format());
  const uint32_t row_pieces = low_latency::row_pieces(params.row);
  const Bytes16* const rows = pieces + layout.rows_at(header.weights != 0) / sizeof(Bytes16);
  each_token(
      params.tokens_max, [&](uint32_t token) { return names_expert(ids, token, params.topk); },
      [&](uint32_t token, uint32_t place) {
        if (!same) return;
        const Peer<Bytes16> row = windows.row_here(parity, rank, token);
        const Bytes16* const from = rows + size_t{place} * row_pieces;
        // Relaxed: kernels of this stream read them.
        for (uint32_t piece = warp::lane(); piece < row_pieces; piece += kWarpLanes)
          store<Order::relaxed, Scope::sys>(row + staged_piece(params.row, piece),
                                            load_vector(from + piece));
      },
      [](uint32_t, uint32_t) {});
  if (thread::index() == 0) put.state().publishes_late[params.batch] = header.weights == 0 ? 1 : 0;
}

/// Stores sums to this rank's window, where their format has its place.
TOKENYARD_DEVICE void unpack_sums(const PutCall& put, const std::byte* message,
                                  const MessageHeader& header) {
  const MessagesParams& params = put.params;
  const bool logfmt = header.format != 0;
  const uint32_t pieces = sum_pieces(params.sums, logfmt);
  const auto* const bits = reinterpret_cast<const uint32_t*>(message + MessageLayout::bits_at());
  const auto* const sums = reinterpret_cast<const Bytes16*>(message + put.paths().layout.sums_at());
  each_token(
      params.tokens_max, [&](uint32_t token) { return (bits[token / 32] >> token % 32 & 1) != 0; },
      [&](uint32_t token, uint32_t place) {
        const Peer<Bytes16> to =
            params.call.windows.partial_here(put.call.parity(), put.peer().rank, token) +
            first_piece(params.sums, logfmt);
        // Relaxed: kernels of this stream read them.
        for (uint32_t piece = warp::lane(); piece < pieces; piece += kWarpLanes)
          store<Order::relaxed, Scope::sys>(to + piece,
                                            load_vector(sums + size_t{place} * pieces + piece));
      },
      [](uint32_t, uint32_t) {});
}

TOKENYARD_DEVICE void unpack(const PutCall& put, const std::byte* message,
                             const MessageHeader& header) {
  switch (put.params.channel) {
    case Channel::rows:
      return unpack_rows(put, message, header);
    case Channel::weights:
      return unpack_weights(put, message, header, load_cached(put.params.weights_stamp));
    case Channel::sums:
      return unpack_sums(put, message, header);
  }
}

TOKENYARD_DEVICE Phase phase_of(Channel channel) {
  switch (channel) {
    case Channel::rows:
      return Phase::put_rows;
    case Channel::weights:
      return Phase::put_weights;
    case Channel::sums:
      break;
  }
  return Phase::put_sums;
}

/// Returns whether this call awaits a message of the peer.
TOKENYARD_DEVICE bool awaits_message(const PutCall& put) {
  return put.params.channel != Channel::weights ||
         put.state().publishes_late[put.params.batch] != 0;
}

/// Masks a peer that has skipped this message, which cannot come any more. Called by one thread.
TOKENYARD_DEVICE void give_up(const PutCall& put, Phase phase, uint32_t seen) {
  const WaitContext context = put.params.call.masks.wait_context(put.peer().rank);
  Deadline(context, put.call.start_ns)
      .fail(Failure::deadline, Awaited{.phase = static_cast<uint32_t>(phase),
                                       .rank = put.peer().rank,
                                       .expected = put.call.epoch(),
                                       .seen = seen});
}

/// Receives the peer's message. Called by the whole block.
TOKENYARD_DEVICE void receive_message(const PutCall& put) {
  const std::byte* const message =
      put.paths().landing(put.index, put.params.channel, put.call.parity());
  const Phase phase = phase_of(put.params.channel);
  block::sync();  // The previous peer's answer has been read.
  if (thread::index() == 0) {
    bool comes = awaits_message(put) && await_message(put, phase);
    if (!comes && put.params.channel == Channel::rows)
      put.state().publishes_late[put.params.batch] = 0;
    if (comes) {
      const uint32_t epoch = reinterpret_cast<const MessageHeader*>(message)->epoch;
      if (epoch != put.call.epoch()) [[unlikely]] {
        give_up(put, phase, epoch);
        comes = false;
      }
    }
    put.shared.comes = comes ? 1 : 0;
  }
  block::sync();
  if (put.shared.comes == 0) return;
  unpack(put, message, *reinterpret_cast<const MessageHeader*>(message));
  block::sync();
  if (thread::index() == 0) credit(put, Poster(put), put.call.epoch());
}

/// Keeps sending heartbeats until every block's wait has ended: other ranks wait for this one.
/// Called by the first thread of each block, once per launch.
TOKENYARD_DEVICE void await_blocks(const PutCall& put, bool has_peer) {
  uint64_t* const ended = &put.paths().workspace->ended;
  // Relaxed: the count orders no other data.
  const uint64_t before = fetch_add<Order::relaxed, Scope::gpu>(ended, 1);
  const uint64_t blocks = grid::blocks(), all = (before / blocks + 1) * blocks;
  if (!has_peer) return;
  Beats beats(put);
  put.call.await(Phase::put_end, put.params.call.rank, static_cast<uint32_t>(all),
                 [&](uint64_t& seen) {
                   seen = load<Order::relaxed, Scope::gpu>(ended);
                   if (seen >= all) return true;
                   beats.exchange();
                   return false;
                 });
}

TOKENYARD_DEVICE void exchange_messages(const MessagesParams& params) {
  grid::wait_for_previous();
  auto& shared = block::shared<MessagesShared>();
  const CallParams& common = params.call;
  if (params.paths.workspace->retired != 0) return;
  const Kind kind = params.channel == Channel::rows ? Kind::dispatch : Kind::combine;
  const uint64_t start_ns = now_ns();
  const auto at = [&](bool sending) {
    const uint32_t before = message_epoch(params, kind, sending) - 1;
    return PutCall{params, shared,
                   Call{.params = common,
                        .open_ranks = nullptr,  // The kernel asks for each rank's mask.
                        .kind = kind,
                        .before = {before, before},
                        .start_ns = start_ns},
                   block::index()};
  };
  const bool has_peer = block::index() < params.paths.count;
  const bool has_message = params.channel != Channel::weights || params.publishes;
  if (sends(common.part) && has_message)
    each_peer(at(true), [](const PutCall& put) { send_message(put); });
  if (receives(common.part)) {
    each_peer(at(false), [](const PutCall& put) { receive_message(put); });
    if (thread::index() == 0) await_blocks(at(false), has_peer);
  }
  close_call(at(false).call);
}

TOKENYARD_DEFINE_KERNEL(messages_kernel, exchange_messages, MessagesParams, MessagesShared,
                        kMessagesThreadsMax)

}  // namespace tokenyard::low_latency
