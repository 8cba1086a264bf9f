/// One queue of the card (card.hpp), as the thread that serves it sees it.
///
///   fetch a request, check it, hand it to GIN      up to kOperations under way
///   flush; then `completed`                        sources may be reused
///   while the host drains: signal the peer's word behind all, and get it until it shows the
///   signal; then `settled`                                 the requests have taken effect
#pragma once

#include "device/device.hpp"
#include "device/mutated.hpp"
#include "device/network.hpp"
#include "gin/card.hpp"

namespace tokenyard::gin {

template <class Gin>
class CardQueue {
 public:
  TOKENYARD_DEVICE CardQueue(const CardParams& params, uint32_t queue, Gin& gin)
      : params_(params),
        queue_(queue),
        pair_(*params.pairs[queue]),
        state_(params.states[queue]),
        gin_(gin),
        peer_(params.peers[pair_.peer]),
        issued_(state_.issued),
        posted_(issued_),
        completed_(pair_.completed),
        settled_(pair_.settled),
        operations_(state_.operations) {}

  /// Works until the abort flag is set, a request is refused, or the card is idle.
  TOKENYARD_DEVICE void work() {
    if (state_.ended != 0) return;
    const Deadline forever = params_.wait_context.start();
    note_active();
    do {
      if (is_gone(params_.gone, pair_.peer)) {
        drop();
      } else {
        advance_flush();
        issue();
        complete_empty();
      }
      if (ends_ && (completed_ == issued_ || refusal_check_ == NetworkCheck::connection)) {
        state_.ended = 1;
        return publish_refusal(pair_, params_.refused, refusal_check_, refusal_);
      }
    } while (await_event(forever) && !leaves_);
    // Until the next run, which may be long, nobody looks whether the flush has ended.
    if (flushing_) state_.flush_waited_ns += now_ns() - flush_began_ns_;
  }

 private:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static constexpr uint32_t kLookEvery = 16;  ///< polls
  static constexpr uint32_t kPiecesMax = 2;
  static constexpr uint32_t kAskAgainNs = 2000;  ///< after an answer that came too early

  TOKENYARD_DEVICE bool has_room() const { return operations_ + kPiecesMax <= kOperations; }
  TOKENYARD_DEVICE void count_operation() { state_.operations = ++operations_; }

  /// Waits until there is something to do. Returns false once the card is stopped.
  TOKENYARD_DEVICE bool await_event(const Deadline& forever) {
    Awaited what{.phase = 0, .rank = pair_.peer, .expected = issued_ + 1};
    uint32_t polls = 0;
    return wait_until(forever, what, [&] {
      // Acquires the requests and their sources.
      posted_ = load<Order::acquire, Scope::sys>(&pair_.posted);
      what.seen = posted_;
      const bool gone = is_gone(params_.gone, pair_.peer);
      if (posted_ != issued_ && !ends_ && (gone || has_room())) return true;
      if (operations_ != 0) {
        if (gone || gin_.flushed()) return flush_ended_ = true;
        if (now_ns() - flush_began_ns_ + state_.flush_waited_ns > params_.timeout_ns)
          return timed_out_ = true;
      } else if (may_ask()) {
        return gone || begin_ask();
      }
      return params_.idle_ns != 0 && ++polls % kLookEvery == 0 && is_idle();
    });
  }

  // Relaxed, all of these: the words order no other memory.
  TOKENYARD_DEVICE void note_active() const {
    if (params_.idle_ns != 0) store<Order::relaxed, Scope::gpu>(params_.last_active_ns, now_ns());
  }
  /// Returns whether this run ends. The first queue that finds the whole card idle ends it for all:
  /// a queue that ended alone could get requests while others keep the run going.
  TOKENYARD_DEVICE bool is_idle() {
    if (operations_ != 0) note_active();
    if (load<Order::relaxed, Scope::gpu>(params_.ending_run) == params_.run) return leaves_ = true;
    const uint64_t active = load<Order::relaxed, Scope::gpu>(params_.last_active_ns);
    const uint64_t now = now_ns();
    if (now < active || now - active < params_.idle_ns) return false;
    store<Order::relaxed, Scope::gpu>(params_.ending_run, params_.run);
    return leaves_ = true;
  }

  /// Hands new requests to GIN.
  TOKENYARD_DEVICE void issue() {
    if (posted_ != issued_) note_active();
    while (issued_ != posted_ && !ends_ && has_room()) {
      hand_over(pair_.ring[issued_ % kSlots]);
      if (ends_) break;
      state_.issued = ++issued_;
      if (mutated()) complete(issued_);  // A mutant skips the flush.
    }
    if (operations_ != 0 && !flushing_) begin_flush();
  }

  TOKENYARD_DEVICE void begin_flush() {
    flushing_ = true;
    flushed_until_ = issued_;
    flushed_operations_ = operations_;
    flush_began_ns_ = now_ns();
    gin_.begin_flush(peer_, state_.fetching != 0);
  }

  TOKENYARD_DEVICE void advance_flush() {
    if (flush_ended_) {
      flush_ended_ = flushing_ = false;
      operations_ -= flushed_operations_;
      state_.operations = operations_;
      state_.flush_waited_ns = 0;
      state_.fetching = 0;
      note_active();
      complete(flushed_until_);
      if (asking_) look_at_answer();
    } else if (timed_out_) {
      // Its sources may still be read.
      end_with(NetworkCheck::connection, 0, posted_, completed_);
    }
  }

  /// Promise 2 of device/network.hpp.
  TOKENYARD_DEVICE void complete(uint32_t count) {
    if (static_cast<int32_t>(count - completed_) <= 0) return;
    completed_ = count;
    // Releases the reads of sources and requests.
    store<Order::release, Scope::sys>(&pair_.completed, count);
  }
  /// Completes requests that asked GIN for nothing.
  TOKENYARD_DEVICE void complete_empty() {
    if (operations_ == 0) complete(issued_);
  }

  /// Forgets all requests so far: nobody is there to notice.
  TOKENYARD_DEVICE void drop() {
    // Acquires the requests, whose slots are reused.
    posted_ = load<Order::acquire, Scope::sys>(&pair_.posted);
    state_.issued = issued_ = posted_;
    state_.operations = operations_ = 0;
    state_.flush_waited_ns = 0;
    state_.fetching = 0;
    flushing_ = flush_ended_ = timed_out_ = asking_ = false;
    complete(issued_);
    settle(issued_);
  }

  TOKENYARD_DEVICE void settle(uint32_t count) {
    settled_ = count;
    // Releases what has landed to a host that waits for it.
    store<Order::release, Scope::sys>(&pair_.settled, count);
  }

  /// Returns whether the host waits for requests that have been read, and maybe not landed.
  TOKENYARD_DEVICE bool may_ask() const {
    if (ends_ || settled_ == issued_ || posted_ != issued_) return false;
    // Relaxed: the word only asks.
    return load<Order::relaxed, Scope::sys>(params_.drains) != 0;
  }
  TOKENYARD_DEVICE uint64_t my_word() const {
    const uint64_t number = uint64_t{params_.rank} * params_.queues_per_peer + pair_.number;
    return peer_.asked + number * sizeof(uint64_t);
  }
  /// Asks whether all has taken effect. Returns false if it cannot be asked yet.
  TOKENYARD_DEVICE bool begin_ask() {
    if (!gin_.signal_behind_all(peer_, my_word(), 1)) return false;
    count_operation();
    ++state_.asks;
    asking_ = true;
    asked_until_ = issued_;
    get_answer();
    return true;
  }
  TOKENYARD_DEVICE uint64_t answer_place() const {
    return params_.seen + uint64_t{queue_} * sizeof(uint64_t);
  }
  /// The flush that begins next ends when the word is here, perhaps as it was before the signal.
  TOKENYARD_DEVICE void get_answer() {
    gin_.get(peer_, my_word(), answer_place());
    state_.fetching = 1;
    count_operation();
  }
  TOKENYARD_DEVICE void look_at_answer() {
    // Acquires what the peer has got before the signal.
    const uint64_t seen = load<Order::acquire, Scope::sys>(
        reinterpret_cast<const uint64_t*>(params_.arena + answer_place()));
    if (seen < state_.asks) {
      nap(kAskAgainNs);
      return get_answer();
    }
    asking_ = false;
    settle(asked_until_);
  }

  /// Hands a request to GIN, or ends the queue with it.
  TOKENYARD_DEVICE void hand_over(const NetworkRequest& request) {
    const auto kind = static_cast<uint32_t>(request.kind);
    switch (request.kind) {
      case NetworkRequest::Kind::put:
        return put(request);
      case NetworkRequest::Kind::put_inline:
        return put_inline(request);
      case NetworkRequest::Kind::signal:
        return signal(request);
    }
    end_with(NetworkCheck::request, region_of_key(request.target_key), 2, kind);
  }

  TOKENYARD_DEVICE void put(const NetworkRequest& request) {
    if (request.pieces == 0 || request.pieces > kPiecesMax)
      return end_with(NetworkCheck::request, region_of_key(request.target_key), kPiecesMax,
                      request.pieces);
    uint64_t bytes = 0;
    for (uint32_t piece = 0; piece < request.pieces; ++piece) bytes += request.sources[piece].bytes;
    if (bytes == 0) return;
    if (bytes > kNetworkPutMax)
      return end_with(NetworkCheck::size, region_of_key(request.target_key), kNetworkPutMax, bytes);
    if (!has_target(request, bytes)) return;
    for (uint32_t piece = 0; piece < request.pieces; ++piece)
      if (!has_source(request.sources[piece])) return;
    uint64_t target = request.target;
    for (uint32_t piece = 0; piece < request.pieces; ++piece) {
      const NetworkSource& source = request.sources[piece];
      if (source.bytes == 0) continue;
      gin_.put(peer_, target, offset_of(source), source.bytes);
      count_operation();
      target += source.bytes;
    }
  }

  /// A put of GIN has its source in the arena, so the bytes go to the request's slot of the stage
  /// first. That slot is free: the request before it there has completed, or this one would not
  /// have been posted.
  TOKENYARD_DEVICE void put_inline(const NetworkRequest& request) {
    const uint32_t bytes = request.inline_bytes;
    if (bytes > kNetworkInlineMax)
      return end_with(NetworkCheck::size, region_of_key(request.target_key), kNetworkInlineMax,
                      bytes);
    if (bytes == 0 || !has_target(request, bytes)) return;
    const uint32_t slot = mutated() ? 0 : issued_ % kSlots;  // A mutant reuses a source.
    const uint64_t source = params_.stage + (uint64_t{queue_} * kSlots + slot) * kNetworkInlineMax;
    for (uint32_t byte = 0; byte < kNetworkInlineMax; byte += sizeof(uint64_t)) {
      uint64_t word = 0;
      for (uint32_t at = 0; at < sizeof(uint64_t); ++at)
        word |= uint64_t{request.bytes[byte + at]} << 8 * at;
      store<Order::weak, Scope::sys>(
          Peer<uint64_t>(reinterpret_cast<uint64_t*>(params_.arena + source + byte)), word);
    }
    gin_.put(peer_, request.target, source, bytes);
    count_operation();
  }

  TOKENYARD_DEVICE void signal(const NetworkRequest& request) {
    if (!has_target(request, sizeof(uint64_t))) return;
    if (const uint64_t apart = request.target % sizeof(uint64_t); apart != 0)
      return end_with(NetworkCheck::alignment, region_of_key(request.target_key), 0, apart);
    // Promise 1 of device/network.hpp. A mutant uses a signal that waits for no put.
    gin_.signal(peer_, request.target, request.addend,
                mutated() ? SignalKind::weak : SignalKind::strong);
    count_operation();
  }

  TOKENYARD_DEVICE uint64_t offset_of(const NetworkSource& source) const {
    return reinterpret_cast<uintptr_t>(source.from) - reinterpret_cast<uintptr_t>(params_.arena);
  }

  /// Checks a key and a range of an arena, the only region that ranks have.
  TOKENYARD_DEVICE bool has_target(const NetworkRequest& request, uint64_t bytes) {
    return is_in(peer_, request.target_key, request.target, bytes, NetworkCheck::target_key,
                 NetworkCheck::target_range);
  }
  TOKENYARD_DEVICE bool has_source(const NetworkSource& source) {
    return source.bytes == 0 ||
           is_in(params_.peers[params_.rank], source.key, offset_of(source), source.bytes,
                 NetworkCheck::source_key, NetworkCheck::source_range);
  }
  TOKENYARD_DEVICE bool is_in(const CardPeer& owner, MemoryKey key, uint64_t offset, uint64_t bytes,
                              NetworkCheck key_check, NetworkCheck range_check) {
    const uint32_t region = region_of_key(key);
    if (key != owner.key || key == 0) {
      const bool is_arena = region == region_of_key(owner.key);
      end_with(key_check, region, is_arena ? owner.key : 0, key);
      return false;
    }
    if (bytes <= owner.bytes && offset <= owner.bytes - bytes) return true;
    end_with(range_check, region, owner.bytes, offset + bytes);
    return false;
  }

  /// Ends the queue with the request that is next, once those before it are done.
  TOKENYARD_DEVICE void end_with(NetworkCheck check, uint32_t region, uint64_t expected,
                                 uint64_t seen) {
    ends_ = true;
    refusal_check_ = check;
    refusal_ = {.region = region, .expected = expected, .seen = seen};
  }

  const CardParams& params_;
  const uint32_t queue_;
  QueuePair& pair_;
  CardQueueState& state_;
  Gin& gin_;
  const CardPeer& peer_;
  uint32_t issued_, posted_, completed_, settled_;
  uint32_t operations_;
  uint32_t flushed_until_ = 0, flushed_operations_ = 0;  ///< that the flush under way covers
  uint32_t asked_until_ = 0;
  uint64_t flush_began_ns_ = 0;  ///< in this run
  bool flushing_ = false, flush_ended_ = false, timed_out_ = false;
  bool asking_ = false;
  bool ends_ = false;  ///< with request `issued_`, for this reason
  bool leaves_ = false;
  NetworkCheck refusal_check_ = NetworkCheck::none;
  NetworkRefusal refusal_{};
};

}  // namespace tokenyard::gin
