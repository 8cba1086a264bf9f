#include "bench/across_hosts_model/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/memory.hpp"
#include "simt/read_modify_write.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::bench {

using host_body::CodeAddress;

std::vector<Time> Machine::run(const std::vector<std::vector<Launched>>& launches,
                               const CallFacts& facts) {
  const auto ranks = static_cast<uint32_t>(launches.size());
  facts_ = facts;
  launches_ = &launches;
  completions_.clear();
  watchers_.clear();
  blocks_.clear();
  arenas_.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) arenas_.emplace_back(wire_.arena(rank), rank);
  std::ranges::sort(arenas_);
  nvlink_out_.assign(ranks, 0);
  nvlink_in_.assign(ranks, 0);
  kernel_.assign(ranks, 0);
  left_.assign(ranks, 0);
  ended_.assign(ranks, 0);
  running_ = 0;
  wire_.begin(events_, facts_.lengths, facts_.rates,
              [this](const void* word, Time at) { note_change(word, at); });
  for (uint32_t rank = 0; rank < ranks; ++rank) start(rank, 0);
  host_body::set_machine(this);
  while (running_ != 0) {
    if (events_.empty()) deadlock();
    const Events::Event event = events_.take();
    if (event.what != nullptr) {
      (*event.what)();
      delete event.what;
      continue;
    }
    lane_ = event.lane;
    lane_->clock = std::max(lane_->clock, event.at);
    lane_->fiber->resume();
    if (!lane_->fiber->ended()) continue;
    lane_->fiber.reset();
    --running_;
    const uint32_t rank = lane_->block->rank;
    ended_[rank] = std::max(ended_[rank], lane_->clock);
    if (--left_[rank] == 0 && ++kernel_[rank] < launches[rank].size())
      start(rank, ended_[rank] + costs_.next_kernel);
  }
  while (!events_.empty()) {
    const Events::Event event = events_.take();
    (*event.what)();
    delete event.what;
  }
  host_body::set_machine(nullptr);
  return ended_;
}

/// Starts a rank's next kernel. The blocks of the one before are given back.
void Machine::start(uint32_t rank, Time at) {
  const Launched& launched = (*launches_)[rank][kernel_[rank]];
  if (kernel_[rank] != 0) {
    const auto of_rank = [&](const Lane* lane) { return lane->block->rank == rank; };
    for (auto& [word, lanes] : watchers_)
      std::erase_if(lanes, [&](const auto& watcher) { return of_rank(watcher.first); });
    std::erase_if(blocks_, [&](const auto& block) { return block->rank == rank; });
  }
  const uint32_t threads = launched.shape.warps * 32;
  for (uint32_t index = 0; index < launched.shape.blocks; ++index) {
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.rank = rank;
    block.tail = (launched.kernel->shared_bytes + 127) / 128 * 128;
    block.memory.resize(block.tail + launched.shape.extra_shared_bytes + 256);
    const auto begin = reinterpret_cast<uintptr_t>(block.memory.data());
    block.shared = block.memory.data() + (128 - begin % 128) % 128;
    block.warps.resize(launched.shape.warps);
    block.any.resize(threads);
    for (uint32_t thread = 0; thread < threads; ++thread) {
      Lane& lane = *block.lanes.emplace_back(std::make_unique<Lane>());
      lane.block = &block;
      lane.identity = {
          .thread = thread, .threads = threads, .block = index, .blocks = launched.shape.blocks};
      lane.fiber = std::make_unique<simt::Fiber>(
          stacks_,
          [entry = launched.kernel->on_host, params = launched.params.data()] { entry(params); });
      events_.resume(at, &lane);
      ++left_[rank];
      ++running_;
    }
  }
}

double Machine::busy_storing(uint32_t rank) const {
  Time busy = 0;
  uint32_t blocks = 0;
  for (const auto& block : blocks_)
    if (block->rank == rank) {
      busy += block->stored;
      ++blocks;
    }
  return static_cast<double>(busy) / static_cast<double>(ended_[rank]) / blocks;
}

std::vector<WaitOfRole> Machine::waits(uint32_t rank) const {
  std::vector<WaitOfRole> waits;
  for (uint32_t warp = 0; warp < 20; ++warp)
    for (uint32_t phase = 0; phase < 32; ++phase) {
      WaitOfRole wait{.warp = warp, .phase = phase};
      uint32_t lanes = 0;
      for (const auto& block : blocks_) {
        if (block->rank != rank || warp >= block->warps.size()) continue;
        for (uint32_t lane = 0; lane < 32; ++lane) {
          const Lane& of = *block->lanes[warp * 32 + lane];
          if (of.waited[phase] == 0) continue;
          ++lanes;
          const double us = static_cast<double>(of.waited[phase]) * 1e-6;
          wait.most_us = std::max(wait.most_us, us);
          wait.mean_us += us;
          wait.until_us =
              std::max(wait.until_us, static_cast<double>(of.waited_until[phase]) * 1e-6);
        }
      }
      if (lanes == 0) continue;
      wait.mean_us /= lanes;
      waits.push_back(wait);
    }
  return waits;
}

void Machine::deadlock() const {
  std::string text = "nothing can go on in the model:";
  uint32_t shown = 0;
  for (const auto& block : blocks_)
    for (const auto& lane : block->lanes)
      if (lane->fiber && lane->waits != nullptr && shown++ < 20)
        text += fmt::format("\n  rank {} block {} thread {}: {}", block->rank, lane->identity.block,
                            lane->identity.thread, lane->waits);
  throw InternalError(text);
}

void Machine::catch_up() {
  if (events_.empty() || events_.next() >= lane_->clock) return;
  Lane* const me = lane_;
  events_.resume(me->clock, me);
  me->fiber->yield();
}

void Machine::block_lane(const char* why) {
  Lane* const me = lane_;
  me->waits = why;
  me->fiber->yield();
  me->waits = nullptr;
}

// ---- threads that meet ------------------------------------------------------------------------

void Machine::meet(host_body::WarpMeeting& meeting) {
  Lane& me = *lane_;
  const uint32_t index = me.identity.thread % 32;
  Warp& warp = me.block->warps[me.identity.thread / 32];
  Meeting* mine = nullptr;
  for (Meeting& other : warp.meetings)
    if (other.lanes == meeting.lanes && other.word == meeting.word &&
        (other.arrived >> index & 1) == 0)
      mine = &other;
  if (mine == nullptr) {
    mine = &warp.meetings.emplace_back();
    mine->word = meeting.word;
    mine->lanes = meeting.lanes;
  }
  mine->arrived |= 1u << index;
  // Lanes that sleep in a wait poll with this one.
  const uint32_t first_lane = me.identity.thread - index;
  for (uint32_t left = mine->lanes & ~mine->arrived; left != 0; left &= left - 1) {
    Lane& of = *me.block->lanes[first_lane + static_cast<uint32_t>(std::countr_zero(left))];
    if (of.sleeps) wake(of, me.clock);
  }
  mine->values[index] = meeting.value;
  mine->latest = std::max(mine->latest, me.clock);
  if (mine->arrived != mine->lanes) {
    block_lane("a meeting of a warp");
  } else {
    const Time at = mine->latest + costs_.meeting;
    for (uint32_t other = 0; other < 32; ++other) {
      if ((mine->lanes >> other & 1) == 0) continue;
      Lane& met = *me.block->lanes[first_lane + other];
      met.met = mine->values;
      met.clock = at;
      if (&met != &me) events_.resume(at, &met);
    }
    warp.meetings.erase(warp.meetings.begin() + (mine - warp.meetings.data()));
  }
  meeting.values = me.met.data();
}

void Machine::barrier(uint32_t id, uint32_t threads, bool wait, CodeAddress) {
  Lane& me = *lane_;
  BarrierOfBlock& barrier = me.block->barriers[id];
  barrier.latest = std::max(barrier.latest, me.clock);
  ++barrier.arrived;
  if (barrier.arrived != threads) {
    if (!wait) return;
    barrier.waiting.push_back(&me);
    return block_lane("a barrier of a block");
  }
  const Time at = barrier.latest + costs_.barrier;
  for (Lane* const other : barrier.waiting) {
    me.block->any[other->identity.thread] = barrier.any;
    other->clock = at;
    events_.resume(at, other);
  }
  me.block->any[me.identity.thread] = barrier.any;
  if (wait) me.clock = at;
  barrier = {};
}

bool Machine::barrier_any(bool predicate, CodeAddress where) {
  Lane& me = *lane_;
  me.block->barriers[0].any |= predicate;
  barrier(0, me.identity.threads, true, where);
  return me.block->any[me.identity.thread] != 0;
}

// ---- memory -----------------------------------------------------------------------------------

void Machine::misaligned(const void* at, uint32_t bytes, CodeAddress) {
  throw InternalError(fmt::format("an access of {} bytes to {}", bytes, at));
}

bool Machine::is_far(const void* at, uint32_t& rank) const {
  rank = lane_->block->rank;
  const auto* const byte = static_cast<const std::byte*>(at);
  const auto behind =
      std::ranges::upper_bound(arenas_, byte, {}, [](const auto& arena) { return arena.first; });
  if (behind == arenas_.begin()) return false;
  const uint32_t other = std::prev(behind)->second;
  if (other == rank || byte >= wire_.arena(other) + wire_.arena_bytes(other)) return false;
  rank = other;
  return true;
}

bool Machine::is_piece(const void* at) const {
  if (facts_.pieces.empty()) return false;
  const PieceRanges& ranges = facts_.pieces[lane_->block->rank];
  const auto* const byte = static_cast<const std::byte*>(at);
  const auto behind =
      std::ranges::upper_bound(ranges, byte, {}, [](const auto& range) { return range.first; });
  return behind != ranges.begin() && byte < std::prev(behind)->second;
}

void Machine::watch(const void* word, uint32_t bytes) {
  // Those of the last poll are the last ones.
  constexpr size_t kMost = 64;
  if (lane_->watched.size() == kMost) lane_->watched.erase(lane_->watched.begin());
  std::array<uint64_t, 2> value{};
  std::memcpy(value.data(), word, bytes);
  lane_->watched.push_back({static_cast<const std::byte*>(word), value, bytes});
}

void Machine::wake(Lane& lane, Time at) {
  lane.sleeps = false;
  ++lane.sleep;
  events_.resume(std::max(at, lane.clock), &lane);
}

void Machine::note_change(const void* word, Time at) {
  const auto found = watchers_.find(static_cast<const std::byte*>(word));
  if (found == watchers_.end()) return;
  for (const auto& [lane, sleep] : found->second)
    if (lane->sleeps && lane->sleep == sleep) wake(*lane, at);
  found->second.clear();  // Its memory stays, since the word will be watched again.
}

/// Lets the thread sleep until a word that it has read changes.
void Machine::sleep() {
  Lane& me = *lane_;
  for (const Watched& watched : me.watched)
    if (std::memcmp(watched.word, watched.seen.data(), watched.bytes) != 0) {
      me.watched.clear();
      return catch_up();
    }
  for (const Watched& watched : me.watched) watchers_[watched.word].emplace_back(&me, me.sleep);
  me.watched.clear();
  me.sleeps = true;
  block_lane("a wait");
}

void Machine::load(const void* from, void* value, uint32_t bytes, Order order, Scope, CodeAddress) {
  if (!facts_.free_words.empty()) {
    const auto& free_words = facts_.free_words[lane_->block->rank];
    if (from == free_words.first || from == free_words.second) {
      std::memcpy(value, from, bytes);
      return;
    }
  }
  uint32_t rank = 0;
  const bool far = is_far(from, rank);
  const bool piece = bytes == 16 && is_piece(from);
  if (piece) {
    catch_up();  // Lanes take turns at what they share.
    Block& block = *lane_->block;
    block.load_free = std::max(block.load_free, lane_->clock) +
                      Costs::at(costs_.load_gb_s, 16 * facts_.lengths.pieces);
    lane_->clock = std::max(lane_->clock, block.load_free);
  }
  if (order == Order::weak) {
    const Time once = far ? costs_.far_load : costs_.cached_load;
    // A warp that copies piece by piece waits for each of them.
    spend(piece ? static_cast<Time>(static_cast<double>(once) * facts_.lengths.turns) : once);
  } else {
    // Relaxed loads one behind the other are under way together.
    const bool next = order == Order::relaxed && !far && lane_->loaded == lane_->clock;
    spend(next ? costs_.next_load : far ? costs_.far_load : costs_.load);
    const Time loaded = lane_->clock;
    catch_up();
    lane_->loaded = order == Order::relaxed ? loaded : 0;
    watch(from, bytes);
  }
  std::memcpy(value, from, bytes);
}

/// Charges the stores of a row: of the slot that a mark says was written, or of the token whose
/// last slots were read, which the lanes of a warp mark at once.
void Machine::note_marks(const void* to) {
  if (facts_.marks.empty()) return;
  const RowMarks& marks = facts_.marks[lane_->block->rank];
  const auto* const byte = static_cast<const std::byte*>(to);
  if (byte < marks.written || byte >= marks.end) return;
  Block& block = *lane_->block;
  Warp& warp = block.warps[lane_->identity.thread / 32];
  const bool reads = static_cast<uint64_t>(byte - marks.written) % marks.stride >= marks.stride / 2;
  if (reads && warp.stored == lane_->clock) return;
  if (reads) warp.stored = lane_->clock;
  const Time took = Costs::at(costs_.store_gb_s, facts_.lengths.full_row);
  block.store_free = std::max(block.store_free, lane_->clock) + took;
  block.stored += took;
  lane_->clock = block.store_free;
}

void Machine::store(void* to, const void* value, uint32_t bytes, Order order, Scope scope,
                    CodeAddress) {
  spend(costs_.instruction);
  if (order != Order::weak) {
    if (order == Order::release) {
      catch_up();
      note_marks(to);
      spend(scope == Scope::gpu   ? costs_.release_gpu
            : scope == Scope::sys ? costs_.release_sys
                                  : 0);
    }
    catch_up();
  }
  uint32_t rank = 0;
  const bool far = order != Order::weak && is_far(to, rank);
  Time seen = lane_->clock;
  if (bytes == 16 && is_piece(to)) {
    Block& block = *lane_->block;
    const double full = 16 * facts_.lengths.pieces;
    const Time took = Costs::at(costs_.store_gb_s, full);
    block.store_free = std::max(block.store_free, lane_->clock) + took;
    block.stored += took;
    lane_->clock = seen = block.store_free;
    if (far) seen = std::max(seen, over_nvlink(block.rank, rank, full));
  }
  if (far) {
    std::array<uint64_t, 2> kept{};
    std::memcpy(kept.data(), value, bytes);
    seen += costs_.far_store;
    events_.run(seen, [this, to, kept, bytes, seen] {
      std::memcpy(to, kept.data(), bytes);
      note_change(to, seen);
    });
    return;
  }
  std::memcpy(to, value, bytes);
  if (order != Order::weak) note_change(to, lane_->clock);
  if (order == Order::release) wire_.note_post(to, lane_->clock);
}

void Machine::modify(host_body::Modify what, void* at, const void* operand, void* old,
                     uint32_t bytes, Order order, Scope scope, CodeAddress) {
  if (scope == Scope::block) {
    spend(costs_.instruction);
  } else {
    if (order == Order::release || order == Order::acq_rel) spend(costs_.release_gpu);
    if (old != nullptr) spend(costs_.load);
    catch_up();
  }
  const auto apply = [&](auto sized) {
    using T = decltype(sized);
    T by{}, seen{};
    std::memcpy(&by, operand, sizeof(T));
    std::memcpy(&seen, at, sizeof(T));
    const T next = simt::modified(what, seen, by);
    std::memcpy(at, &next, sizeof(T));
    if (old != nullptr) std::memcpy(old, &seen, sizeof(T));
  };
  bytes == 4 ? apply(uint32_t{}) : apply(uint64_t{});
  if (scope != Scope::block) note_change(at, lane_->clock);
}

void Machine::compare_exchange(void* at, const void* expected, const void* desired, void* old,
                               uint32_t bytes, Order, Scope scope, CodeAddress) {
  if (scope != Scope::block) {
    spend(costs_.load);
    catch_up();
  }
  uint64_t seen = 0;
  std::memcpy(&seen, at, bytes);
  if (std::memcmp(&seen, expected, bytes) == 0) {
    std::memcpy(at, desired, bytes);
    note_change(at, lane_->clock);
  }
  std::memcpy(old, &seen, bytes);
}

void Machine::fence(Fence, Scope scope, CodeAddress) {
  spend(scope == Scope::sys ? costs_.release_sys : costs_.release_gpu);
}

// ---- copies -----------------------------------------------------------------------------------

void Machine::completion_init(void* completion, uint32_t arrivals, CodeAddress) {
  std::memset(completion, 0, 8);  // Watched, though nothing is kept there.
  completions_[completion] = {.arrivals = arrivals, .pending = arrivals};
}

void Machine::end_phase(Completion& completion, const void* at) {
  if (completion.pending != 0 || completion.bytes != 0) return;
  completion.parity ^= 1;
  completion.pending = completion.arrivals;
  completion.ended = completion.due;
  completion.due = 0;
  note_change(at, lane_->clock);
}

void Machine::completion_arrive(void* at, uint32_t expected_bytes, CodeAddress) {
  spend(costs_.instruction);
  Completion& completion = completions_[at];
  completion.bytes += expected_bytes;
  --completion.pending;
  completion.due = std::max(completion.due, lane_->clock);
  end_phase(completion, at);
}

bool Machine::completion_done(void* at, uint32_t parity, CodeAddress) {
  const Completion& completion = completions_[at];
  if (completion.parity == (parity & 1)) {
    watch(at, 8);
    return false;
  }
  lane_->clock = std::max(lane_->clock, completion.ended + 4 * costs_.instruction);
  return true;
}

/// Returns when bytes that set out now have gone from one GPU to another.
Time Machine::over_nvlink(uint32_t from, uint32_t to, double bytes) {
  const Time of_link = Costs::at(costs_.nvlink_gb_s, bytes);
  Time &out = nvlink_out_[from], &in = nvlink_in_[to];
  out = std::max(out, lane_->clock) + of_link;
  in = std::max(in, lane_->clock) + of_link;
  return std::max(out, in);
}

void Machine::bulk_load(void* to_shared, const void* from, uint32_t bytes, void* at, CodeAddress) {
  spend(costs_.issue);
  catch_up();
  std::memcpy(to_shared, from, bytes);
  Block& block = *lane_->block;
  const Time took = Costs::at(costs_.load_gb_s, facts_.lengths.full(bytes));
  block.load_free = std::max(block.load_free, lane_->clock) + took;
  Completion& completion = completions_[at];
  completion.bytes -= bytes;
  uint32_t rank = 0;
  const bool far = is_far(from, rank);
  Time done = std::max(block.load_free,
                       lane_->clock + (far ? costs_.far_bulk_load : costs_.bulk_load) + took);
  if (far) done = std::max(done, over_nvlink(rank, block.rank, facts_.lengths.full(bytes)));
  completion.due = std::max(completion.due, done);
  end_phase(completion, at);
}

void Machine::bulk_store(void* to, const void* from_shared, uint32_t bytes, CodeAddress) {
  spend(costs_.issue);
  catch_up();
  std::memcpy(to, from_shared, bytes);
  Block& block = *lane_->block;
  const double full = facts_.lengths.full(bytes);
  const Time took = Costs::at(costs_.store_gb_s, full);
  block.store_free = std::max(block.store_free, lane_->clock) + took;
  block.stored += took;
  uint32_t rank = 0;
  const bool far = is_far(to, rank);
  Time done = block.store_free;
  if (far) done = std::max(done, over_nvlink(block.rank, rank, full));
  lane_->copied_read = std::max(lane_->copied_read, done);
  lane_->copied =
      std::max(lane_->copied, done + (far ? costs_.far_bulk_stored : costs_.bulk_stored));
}

void Machine::bulk_wait(uint32_t, bool sources_only, CodeAddress) {
  lane_->clock = std::max(lane_->clock, sources_only ? lane_->copied_read : lane_->copied);
}

// ---- waiting ----------------------------------------------------------------------------------

void Machine::nap(uint32_t ns) {
  spend(nanoseconds(ns));
  catch_up();
}

void Machine::spin(uint32_t phase, uint32_t, uint64_t, uint64_t, CodeAddress) {
  Lane& me = *lane_;
  // A wait polls again and again; what lies between two waits is none.
  const uint32_t index = phase % 32;
  if (me.phase == phase && me.clock - me.polled < nanoseconds(20'000))
    me.waited[index] += me.clock - me.polled;
  me.waited_until[index] = me.clock;
  me.phase = phase;
  me.polled = me.clock;
  // A poll that has read shared memory alone would take no time.
  spend(costs_.meeting * 2);
  sleep();
}

}  // namespace tokenyard::bench
