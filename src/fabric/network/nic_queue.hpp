/// The card keeps the two promises of device/network.hpp and breaks every other expectation, as its
/// seed says:
///
///   - It looks at all requests of a queue's ring at once. A put is cut at random bytes into up to
///     four fragments, which land in any order among those of other puts, also of puts posted after
///     a signal that has not been applied.
///   - A signal is applied once the puts posted before it have landed; of several such, any first.
///   - A source is read when a fragment lands, and perhaps once more later, as after a lost
///     acknowledgement; or it is first copied to the queue's stage, as far as that has space, and
///     the put, completed, lands long after the flush. A put of more than kStageBytes has landed
///     when it completes: that its flush says nothing of the other side is not shown here.
///   - Completions are told late, and a queue pauses between any two steps, now and then for long.
///
/// A request with a bad key or range ends its queue with a refusal, and the waits of its rank.
/// Requests to a rank that is gone are dropped.
#pragma once

#include "fabric/network/nic.hpp"

namespace tokenyard {

/// Returns the next number of a random sequence fixed by the seed, so that a run can be replayed.
TOKENYARD_DEVICE uint32_t nic_chance(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(mixed >> 32);
}

/// Copies words of a type that both ends are aligned for, as far as they go.
template <class Word>
TOKENYARD_DEVICE uint64_t nic_copy_words(std::byte* to, const std::byte* from, uint64_t at,
                                         uint64_t bytes) {
  if ((reinterpret_cast<uintptr_t>(to + at) | reinterpret_cast<uintptr_t>(from + at)) %
          sizeof(Word) !=
      0)
    return at;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word)) {
    store<Order::weak, Scope::sys>(Peer<Word>(reinterpret_cast<Word*>(to + at)),
                                   *reinterpret_cast<const Word*>(from + at));
  }
  return at;
}

/// Copies bytes of any length and alignment.
TOKENYARD_DEVICE void nic_copy(std::byte* to, const std::byte* from, uint64_t bytes) {
  uint64_t at = 0;
  const auto distance = reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
  const uint32_t word = distance % 8 == 0 ? 8 : distance % 4 == 0 ? 4 : 1;
  const auto byte_by_byte = [&](uint64_t end) {
    for (; at < end; ++at) {
      store<Order::weak, Scope::sys>(Peer<uint8_t>(reinterpret_cast<uint8_t*>(to + at)),
                                     *reinterpret_cast<const uint8_t*>(from + at));
    }
  };
  const uint64_t head = (word - reinterpret_cast<uintptr_t>(to) % word) % word;
  byte_by_byte(head < bytes ? head : bytes);
  if (word == 8) at = nic_copy_words<uint64_t>(to, from, at, bytes);
  if (word >= 4) at = nic_copy_words<uint32_t>(to, from, at, bytes);
  byte_by_byte(bytes);
}

/// Reads bytes, of many the last ones, and forgets them.
TOKENYARD_DEVICE void nic_read(const std::byte* from, uint64_t bytes) {
  constexpr uint64_t kMost = 256;
  for (uint64_t at = bytes > kMost ? bytes - kMost : 0; at < bytes; ++at) {
    (void)load<Order::weak, Scope::sys>(
        Peer<const uint8_t>(reinterpret_cast<const uint8_t*>(from + at)));
  }
}

/// Why a card refuses a request; `check` none: its peer does not answer.
struct NicRefusal {
  NetworkCheck check;
  NetworkRefusal facts;
};

/// One queue, as the thread that serves it sees it. Turns number its requests; a turn's bit in a
/// mask is that of its slot, so a mask covers all that are under way.
///
/// `Front` is the form of requests and answers in memory: RequestFront or Mlx5Front. An mlx5 card
/// completes a request only after its target has accepted it, returns what fetch-adds find, and
/// addresses regions from 0.
template <class Front>
class NicQueue {
 public:
  static constexpr uint32_t kSlots = QueuePair::kSlots;
  static_assert(kSlots == 64, "a mask has a bit per slot");
  enum class Outcome : uint32_t { done, dropped, refused };

  TOKENYARD_DEVICE NicQueue(const NicParams& params, uint32_t queue)
      : params_(params),
        pair_(*params.pairs[queue]),
        entries_(params.entries + queue * kSlots),
        stage_(params.stages + uint64_t{queue} * NicParams::kStageBytes),
        peer_(pair_.peer),
        chance_(params.seed + queue * 0x632be59bd9b4e019u),
        peer_table_(params.peer_tables[queue]),
        front_(params, queue),
        fetched_(pair_.completed),
        completed_(fetched_),
        oldest_(fetched_) {}

  /// Works until the abort flag is set and nothing is under way, or a request is refused.
  TOKENYARD_DEVICE void work() {
    const Deadline forever = params_.wait_context.start();
    for (uint32_t step = 1; params_.dies_after == 0 || step < params_.dies_after; ++step) {
      if (!ends_) fetch();
      if (live_ == 0) {
        complete();
        if (ends_) return end(forever);
        if (!await_requests(forever)) return;
        continue;
      }
      if (is_gone(params_.gone, peer_)) {
        drop();
        continue;
      }
      pause();
      const uint32_t slot = choose();
      const Outcome outcome = slot == kNone ? Outcome::done : execute(slot);
      if (outcome == Outcome::dropped) drop();
      if (slot == kNone || chance() % 2 == 0) complete();
    }
  }

 private:
  static constexpr uint32_t kNone = kSlots;  ///< no slot

  TOKENYARD_DEVICE uint32_t chance() { return nic_chance(chance_); }
  TOKENYARD_DEVICE static uint64_t bit(uint32_t turn) { return uint64_t{1} << turn % kSlots; }

  TOKENYARD_DEVICE void pause() {
    if (params_.stall_ns_max != 0 && chance() % 64 == 0) nap(chance() % params_.stall_ns_max);
    if (params_.nap_ns_max != 0 && chance() % 2 == 0) nap(chance() % params_.nap_ns_max);
  }

  TOKENYARD_DEVICE bool await_requests(const Deadline& forever) {
    // Releases what has landed to a host that waits for it.
    store<Order::release, Scope::sys>(&pair_.settled, fetched_);
    Awaited what{.phase = 0, .rank = peer_, .expected = fetched_ + 1};
    return wait_until(forever, what, [&] {
      what.seen = front_.posted(fetched_, chance());
      return what.seen != fetched_;
    });
  }

  /// Takes new requests, as far as their entries are free.
  TOKENYARD_DEVICE void fetch() {
    const uint32_t until = front_.posted(fetched_, chance());
    while (oldest_ != fetched_ && (live_ & bit(oldest_)) == 0) ++oldest_;
    for (; fetched_ != until && fetched_ - oldest_ < kSlots; ++fetched_) {
      NicEntry& entry = entries_[fetched_ % kSlots];
      front_.take(fetched_, entry.request);
      const bool put = entry.request.kind != NetworkRequest::Kind::signal;
      const auto bytes = static_cast<uint32_t>(bytes_of(entry.request));
      const uint32_t fragments = put ? 1 + chance() % NicEntry::kFragments : 1;
      entry.unlanded = (1u << fragments) - 1;
      // The sources of other requests are in the request itself.
      const bool read = entry.request.kind != NetworkRequest::Kind::put;
      entry.unread = read ? 0 : entry.unlanded;
      entry.cuts[0] = 0;
      for (uint32_t cut = 1; cut <= fragments; ++cut) {
        const uint64_t rest = bytes - entry.cuts[cut - 1];
        entry.cuts[cut] = cut == fragments
                              ? bytes
                              : entry.cuts[cut - 1] + static_cast<uint32_t>(chance() % (rest + 1));
      }
      entry.staged = !read && bytes <= NicParams::kStageBytes - stage_used_ && chance() % 2 == 0;
      entry.stage = stage_used_;
      if (entry.staged != 0) {
        ++staged_;
        stage_used_ += bytes;
      }
      entry.due_ns = due(bytes);
      live_ |= bit(fetched_);
      puts_ = put ? puts_ | bit(fetched_) : puts_ & ~bit(fetched_);
      read_ = read && !Front::kMlx5 ? read_ | bit(fetched_) : read_ & ~bit(fetched_);
    }
  }

  TOKENYARD_DEVICE static uint64_t bytes_of(const NetworkRequest& request) {
    if (request.kind == NetworkRequest::Kind::signal) return 0;
    if (request.kind != NetworkRequest::Kind::put) return request.inline_bytes;
    uint64_t bytes = request.sources[0].bytes;
    if (request.pieces == 2) bytes += request.sources[1].bytes;
    return bytes;
  }

  /// Returns when a request of this length, sent behind all others, has crossed the link.
  TOKENYARD_DEVICE uint64_t due(uint32_t bytes) {
    if (params_.latency_ns == 0 && params_.fs_per_byte == 0) return 0;
    owed_fs_ += bytes * params_.fs_per_byte;
    const uint64_t cost = owed_fs_ / 1'000'000;
    owed_fs_ %= 1'000'000;
    // Relaxed: the word orders no other memory. The link's queues share it.
    fetch_max<Order::relaxed, Scope::gpu>(params_.link_free_ns, now_ns());
    return fetch_add<Order::relaxed, Scope::gpu>(params_.link_free_ns, cost) + cost +
           params_.latency_ns;
  }

  /// Returns the slot of the request to work on, or kNone after a pause if none is due yet.
  TOKENYARD_DEVICE uint32_t choose() {
    const bool timed = params_.latency_ns != 0 || params_.fs_per_byte != 0;
    const uint64_t now = timed ? now_ns() : 0;
    const bool early = mutated();  // A mutant applies a signal before its puts.
    uint32_t candidates = 0, chosen = kNone;
    uint64_t first_due = ~uint64_t{0};
    bool put_before = false;
    for (uint32_t turn = oldest_; turn != fetched_; ++turn) {
      if ((live_ & bit(turn)) == 0) continue;
      // A put that has landed, but whose source is to be read again, delays nothing.
      const bool put = entries_[turn % kSlots].request.kind != NetworkRequest::Kind::signal;
      // Promise 1: a signal waits for the puts that were posted before it.
      const bool ready = put || !put_before || early;
      put_before |= (puts_ & bit(turn)) != 0;
      if (!ready) continue;
      const uint64_t due_ns = timed ? entries_[turn % kSlots].due_ns : 0;
      if (due_ns < first_due) first_due = due_ns;
      if (due_ns > now) continue;
      // Each candidate replaces the choice so far with a chance that makes all equally likely.
      if (chance() % ++candidates == 0) chosen = turn % kSlots;
    }
    if (chosen == kNone) {
      // A request is under way from its post on, so one that is posted meanwhile is fetched soon.
      const uint64_t soon = params_.latency_ns / 16 + 100;
      const uint64_t wait_ns = first_due - now;
      nap(static_cast<uint32_t>(wait_ns < soon ? wait_ns : soon));
    }
    return chosen;
  }

  TOKENYARD_DEVICE Outcome execute(uint32_t slot) {
    NicEntry& entry = entries_[slot];
    const NetworkRequest& request = entry.request;
    working_on_ = slot;
    if (const Outcome outcome = check(request); outcome != Outcome::done) return outcome;
    const Outcome outcome = request.kind == NetworkRequest::Kind::signal ? add_to_target(request)
                                                                         : move_fragment(entry);
    if (outcome != Outcome::done) return outcome;
    if (request.kind == NetworkRequest::Kind::signal) entry.unlanded = 0;
    if (entry.unlanded == 0) puts_ &= ~bit(slot);
    if (entry.unread == 0) read_ |= bit(slot);
    if ((entry.unlanded | entry.unread) != 0) return Outcome::done;
    live_ &= ~bit(slot);
    if (entry.staged != 0 && --staged_ == 0) stage_used_ = 0;
    return Outcome::done;
  }

  /// Lands a fragment of a put, or reads its source: into the stage, or once more.
  TOKENYARD_DEVICE Outcome move_fragment(NicEntry& entry) {
    const uint32_t left = entry.unlanded | entry.unread;
    uint32_t fragment = chance() % NicEntry::kFragments;
    while ((left >> fragment & 1) == 0) fragment = (fragment + 1) % NicEntry::kFragments;
    const uint32_t mask = 1u << fragment;
    const uint64_t begin = entry.cuts[fragment], end = entry.cuts[fragment + 1];
    const bool landed = (entry.unlanded & mask) == 0;
    if (landed || (entry.staged != 0 && (entry.unread & mask) != 0)) {
      entry.unread &= ~mask;
      const Outcome outcome =
          read_sources(entry.request, begin, end, landed ? nullptr : stage_ + entry.stage);
      if (!Front::kMlx5 || landed || entry.unread != 0 || outcome != Outcome::done) return outcome;
      return accept(entry.request);
    }
    entry.unlanded &= ~mask;
    if (chance() % 4 != 0) entry.unread &= ~mask;
    return land(entry, begin, end);
  }

  /// Checks all of a request but its keys and ranges.
  TOKENYARD_DEVICE Outcome check(const NetworkRequest& request) {
    const uint32_t region = region_of_key(request.target_key);
    const auto kind = static_cast<uint32_t>(request.kind);
    if (kind > static_cast<uint32_t>(NetworkRequest::Kind::signal))
      return refuse(NetworkCheck::request, region, 2, kind);
    if (request.kind == NetworkRequest::Kind::put && (request.pieces == 0 || request.pieces > 2))
      return refuse(NetworkCheck::request, region, 2, request.pieces);
    if (request.kind == NetworkRequest::Kind::put_inline &&
        request.inline_bytes > kNetworkInlineMax)
      return refuse(NetworkCheck::size, region, kNetworkInlineMax, request.inline_bytes);
    if (bytes_of(request) > kNetworkPutMax)
      return refuse(NetworkCheck::size, region, kNetworkPutMax, bytes_of(request));
    return Outcome::done;
  }

  /// Refuses the request under work: the queue ends with it, once earlier requests are done.
  TOKENYARD_DEVICE Outcome refuse(NetworkCheck why, uint32_t region, uint64_t expected,
                                  uint64_t seen) {
    uint32_t turn = oldest_;
    while (turn % kSlots != working_on_) ++turn;
    if (Front::kMlx5 && static_cast<int32_t>(turn - completed_) < 0) {
      // It was accepted, and its target deregistered since.
      live_ &= ~bit(turn);
      puts_ &= ~bit(turn);
      if (entries_[working_on_].staged != 0 && --staged_ == 0) stage_used_ = 0;
      return Outcome::refused;
    }
    end_with(turn, {why, {.region = region, .expected = expected, .seen = seen}});
    return Outcome::refused;
  }
  TOKENYARD_DEVICE void end_with(uint32_t turn, const NicRefusal& refusal) {
    ends_ = true;
    refusal_ = refusal;
    for (uint32_t later = turn; later != fetched_; ++later) {
      live_ &= ~bit(later);
      puts_ &= ~bit(later);
    }
    fetched_ = turn;
  }

  /// Tells why the queue ends. An mlx5 card then flushes all that is posted later.
  TOKENYARD_DEVICE void end(const Deadline& forever) {
    front_.refuse(fetched_, refusal_);
    if constexpr (Front::kMlx5) {
      ++fetched_;
      do {
        const uint32_t until = front_.posted(fetched_, chance());
        if (until == fetched_) continue;
        pause();
        fetched_ = until;
        front_.flush(until);
      } while (await_requests(forever));
    }
  }

  /// Enters a region by its key. Outcome::done: `leave` must follow.
  TOKENYARD_DEVICE Outcome enter(const RegionTable& table, MemoryKey key, NetworkCheck check,
                                 NetworkRegion& region) {
    const uint32_t number = region_of_key(key);
    if (key == 0 || number >= kNetworkRegions) return refuse(check, number, 0, key);
    // Acquires the region.
    const uint64_t gate =
        fetch_add<Order::acquire, Scope::sys>(table.gate(number, params_.rank), kGateUser);
    const auto opens = static_cast<MemoryKey>(gate);
    if (opens == key) {
      const Peer<NetworkRegion> at = table.region(number);
      region.base = load<Order::weak, Scope::sys>(at.at(&NetworkRegion::base));
      region.bytes = load<Order::weak, Scope::sys>(at.at(&NetworkRegion::bytes));
      return Outcome::done;
    }
    leave(table, key);
    return opens == kClosedKey ? Outcome::dropped : refuse(check, number, opens, key);
  }
  TOKENYARD_DEVICE void leave(const RegionTable& table, MemoryKey key) const {
    // Releases the access to the owner, which waits for it before it frees the memory.
    add<Order::release, Scope::sys>(table.gate(region_of_key(key), params_.rank), -kGateUser);
  }

  /// Enters the target's region and returns where the range lies in `at`.
  TOKENYARD_DEVICE Outcome enter_target(const NetworkRequest& request, uint64_t bytes,
                                        std::byte*& at) {
    NetworkRegion region;
    const Outcome outcome =
        enter(peer_table_, request.target_key, NetworkCheck::target_key, region);
    if (outcome != Outcome::done) return outcome;
    if (bytes <= region.bytes && request.target <= region.bytes - bytes) {
      at = region.base + request.target;
      return Outcome::done;
    }
    leave(peer_table_, request.target_key);
    return refuse(NetworkCheck::target_range, region_of_key(request.target_key), region.bytes,
                  request.target + bytes);
  }

  TOKENYARD_DEVICE Outcome add_to_target(const NetworkRequest& request) {
    std::byte* at = nullptr;
    const Outcome outcome = enter_target(request, sizeof(uint64_t), at);
    if (outcome != Outcome::done) return outcome;
    const uint32_t apart = reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t);
    uint64_t old_value = 0;
    if (apart == 0) {
      // Releases the earlier puts of this queue.
      old_value = fetch_add<Order::release, Scope::sys>(
          Peer<uint64_t>(reinterpret_cast<uint64_t*>(at)), request.addend);
    }
    leave(peer_table_, request.target_key);
    if (apart == 0 && Front::kMlx5) return return_old(request, old_value);
    if (apart == 0) return Outcome::done;
    return refuse(NetworkCheck::alignment, region_of_key(request.target_key), 0, apart);
  }

  /// Puts what a fetch-add returns where its request says.
  TOKENYARD_DEVICE Outcome return_old(const NetworkRequest& request, uint64_t old_value) {
    const NetworkSource& place = request.sources[0];
    NetworkRegion region;
    const Outcome outcome = enter(params_.table, place.key, NetworkCheck::source_key, region);
    if (outcome != Outcome::done) return outcome;
    const auto offset = reinterpret_cast<uintptr_t>(place.from);
    const bool inside = place.bytes == 8 && region.bytes >= 8 && offset <= region.bytes - 8;
    if (inside) nic_copy(region.base + offset, reinterpret_cast<const std::byte*>(&old_value), 8);
    leave(params_.table, place.key);
    if (inside) return Outcome::done;
    return refuse(NetworkCheck::source_range, region_of_key(place.key), region.bytes, offset + 8);
  }

  /// Checks the target of a put that lands later.
  TOKENYARD_DEVICE Outcome accept(const NetworkRequest& request) {
    std::byte* at = nullptr;
    const Outcome outcome = enter_target(request, bytes_of(request), at);
    if (outcome == Outcome::done) leave(peer_table_, request.target_key);
    return outcome;
  }

  /// Copies bytes `begin` to `end` of a put to the target.
  TOKENYARD_DEVICE Outcome land(NicEntry& entry, uint64_t begin, uint64_t end) {
    const NetworkRequest& request = entry.request;
    const bool unchecked = request.target_key == 0 || chance() % 2 == 0;
    if (bytes_of(request) == 0 && unchecked) return Outcome::done;
    std::byte* at = nullptr;
    Outcome outcome = enter_target(request, bytes_of(request), at);
    if (outcome != Outcome::done) return outcome;
    if (request.kind == NetworkRequest::Kind::put_inline) {
      nic_copy(at + begin, reinterpret_cast<const std::byte*>(request.bytes) + begin, end - begin);
    } else if (entry.staged != 0) {
      nic_copy(at + begin, stage_ + entry.stage + begin, end - begin);
    } else {
      outcome = read_sources(request, begin, end, at);
    }
    leave(peer_table_, request.target_key);
    return outcome;
  }

  /// Copies bytes `begin` to `end` of a put's sources, one behind the other, to the same place in
  /// `to`; null: only reads them.
  TOKENYARD_DEVICE Outcome read_sources(const NetworkRequest& request, uint64_t begin, uint64_t end,
                                        std::byte* to) {
    uint64_t piece_begin = 0;
    for (uint32_t piece = 0; piece < request.pieces; ++piece) {
      const NetworkSource& source = request.sources[piece];
      const uint64_t piece_end = piece_begin + source.bytes;
      const uint64_t from = begin > piece_begin ? begin : piece_begin;
      const uint64_t until = end < piece_end ? end : piece_end;
      NetworkRegion region;
      const Outcome outcome = enter(params_.table, source.key, NetworkCheck::source_key, region);
      if (outcome != Outcome::done) return outcome;
      const uintptr_t base = Front::kMlx5 ? 0 : reinterpret_cast<uintptr_t>(region.base);
      const uint64_t offset = reinterpret_cast<uintptr_t>(source.from) - base;
      const bool inside = source.bytes <= region.bytes && offset <= region.bytes - source.bytes;
      const std::byte* const bytes = region.base + offset + (from - piece_begin);
      if (inside && from < until) {
        if (to == nullptr) {
          nic_read(bytes, until - from);
        } else {
          nic_copy(to + from, bytes, until - from);
        }
      }
      leave(params_.table, source.key);
      if (!inside)
        return refuse(NetworkCheck::source_range, region_of_key(source.key), region.bytes,
                      offset + source.bytes);
      piece_begin = piece_end;
    }
    return Outcome::done;
  }

  /// Forgets all requests so far: nobody is there to notice. An mlx5 card tells that nobody
  /// answers.
  TOKENYARD_DEVICE void drop() {
    staged_ = stage_used_ = 0;
    live_ = 0;
    if constexpr (Front::kMlx5) {
      complete();
      if (!ends_ && completed_ != fetched_) end_with(completed_, {NetworkCheck::none, {}});
    } else {
      read_ = ~uint64_t{0};
      complete();
    }
    oldest_ = fetched_;
  }

  /// Promise 2: tells that the sources of all requests before the first unread one may be reused.
  TOKENYARD_DEVICE void complete() {
    const uint32_t before = completed_;
    const bool early = mutated();  // A mutant tells so before it has read them.
    while (completed_ != fetched_ && ((read_ & bit(completed_)) != 0 || early)) ++completed_;
    if (completed_ != before) front_.complete(completed_);
  }

  const NicParams& params_;
  QueuePair& pair_;
  NicEntry* entries_;
  std::byte* stage_;
  uint32_t peer_;
  uint64_t chance_;
  RegionTable peer_table_;
  Front front_;
  uint32_t fetched_, completed_;
  uint32_t oldest_;                       ///< no earlier turn is live
  uint32_t staged_ = 0, stage_used_ = 0;  ///< entries and bytes in the stage
  uint64_t owed_fs_ = 0;     ///< part of a nanosecond that requests have yet to take on the link
  uint64_t live_ = 0;        ///< turns fetched and not executed
  uint64_t puts_ = 0;        ///< of these, puts that have not landed
  uint64_t read_ = 0;        ///< turns whose sources were read
  uint32_t working_on_ = 0;  ///< slot
  bool ends_ = false;        ///< with turn `fetched_`, for this reason
  NicRefusal refusal_{};
};

}  // namespace tokenyard
