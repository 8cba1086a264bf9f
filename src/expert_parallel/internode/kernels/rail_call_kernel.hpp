/// How a call across hosts begins and ends on a rank, and how its warps wait for one another.
#pragma once

#include <algorithm>
#include <bit>

#include "device/device.hpp"
#include "device/guarded_wait.hpp"
#include "device/unroll.hpp"
#include "expert_parallel/internode/kernels/phase.hpp"
#include "expert_parallel/internode/kernels/rail_shared.hpp"
#include "expert_parallel/throughput/kernels/call_kernel.hpp"

namespace tokenyard::internode {

using throughput::ThreadGroup;

/// The deadlines of a call. A rank that does not call holds up the ranks that wait for it, and
/// these hold up others. So each kind of wait ends later than those that it may depend on, and the
/// error names the rank that is silent.
class RailDeadlines {
 public:
  TOKENYARD_DEVICE explicit RailDeadlines(const WaitContext& context)
      : words(context),
        rings_context_(later(context, 8)),
        host_context_(later(context, 4)),
        rings(rings_context_.start()),
        host(host_context_.start()) {}

  const CallDeadline words;  ///< of words that each rank sends when it begins its call

 private:
  TOKENYARD_DEVICE static WaitContext later(WaitContext context, uint32_t part) {
    context.timeout_ns += context.timeout_ns / part;
    return context;
  }
  const WaitContext rings_context_, host_context_;

 public:
  const Deadline rings;  ///< of slots and credits: a rail peer may wait for words
  const Deadline host;   ///< of the ends of ranks of this host, which may wait for slots
};

inline constexpr uint32_t kWordsAtOnce = 8;
static_assert(kSourceWords <= kWordsAtOnce);

/// A call as one thread sees it.
struct RailCall {
  const throughput::CallParams& params;
  const Rails& rails;
  RailShared& shared;
  const CallDeadline& deadline;   ///< RailDeadlines::words
  const Deadline& far_deadline;   ///< RailDeadlines::rings
  const Deadline& host_deadline;  ///< RailDeadlines::host

  TOKENYARD_DEVICE uint32_t epoch() const { return shared.call.epoch; }
  TOKENYARD_DEVICE uint32_t links() const { return rails.tables.links; }
  TOKENYARD_DEVICE RailWorkspace& workspace() const { return rails.tables.workspace(); }
  TOKENYARD_DEVICE uint32_t mover() const { return warp::index() - kFirstMover; }
  TOKENYARD_DEVICE uint32_t movers() const { return warp::count() - kFirstMover; }

  /// Waits for other warps of this rank. Has no deadline of its own: they wait for other ranks, and
  /// name them.
  template <class Condition>
  TOKENYARD_DEVICE bool await_own(Phase phase, Condition condition) const {
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = params.rank};
    return wait_until(what, condition, [&] { return !far_deadline.failed(); });
  }
  /// The same for a warp whose lanes' conditions are alike. Called by all lanes.
  template <class Condition>
  TOKENYARD_DEVICE bool await_own_by_warp(Phase phase, Condition condition) const {
    Awaited what{.phase = static_cast<uint32_t>(phase), .rank = params.rank};
    return wait_until(what, condition, [&] { return !warp::any(far_deadline.failed()); });
  }
  /// Waits until a word that another block of this rank stores carries this call's epoch.
  TOKENYARD_DEVICE bool await_epoch(Phase phase, const uint32_t* word) const {
    // Acquires what the block has stored before it.
    return await_own(phase, [&] { return load<Order::acquire, Scope::gpu>(word) == epoch(); });
  }
  /// Waits for `count` neighbouring words about `source`, at most kWordsAtOnce, as await_word does
  /// for one, but loads them at once. Returns false if the call has failed.
  TOKENYARD_DEVICE bool await_words(Phase phase, uint32_t source, size_t offset, uint32_t count,
                                    uint32_t (&values)[kWordsAtOnce]) const {
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = source,
                 .expected = epoch(),
                 .from_rank = rails.hosts.host_of[source] == rails.hosts.host};
    const Peer<Stamped> words = rails.word<Stamped>(params.rank, offset);
    const bool come = wait_until(deadline, what, [&] {
      bool all = true;
      TOKENYARD_UNROLL
      for (uint32_t i = 0; i < kWordsAtOnce; ++i) {
        if (i >= count) continue;
        // Relaxed: the fence below follows the last one.
        const Stamped seen =
            load<Order::relaxed, Scope::sys>(words + static_cast<std::ptrdiff_t>(i));
        values[i] = seen.value;
        if (seen.epoch == epoch()) continue;
        all = false;
        what.seen = seen.epoch;
      }
      return all;
    });
    // Acquires what their writer did before them.
    fence_acquire<Scope::sys>();
    return come;
  }
  /// Waits for a word about `source` that a rank of this host stores into this rank's window.
  /// Acquire: for what that rank did before it.
  TOKENYARD_DEVICE Stamped await_word(Phase phase, uint32_t source, size_t offset) const {
    // The rail peer here stores words about a rank of another host, also after that rank has left.
    Awaited what{.phase = static_cast<uint32_t>(phase),
                 .rank = source,
                 .expected = epoch(),
                 .from_rank = rails.hosts.host_of[source] == rails.hosts.host};
    const Peer<Stamped> word = rails.word<Stamped>(params.rank, offset);
    Stamped seen{};
    wait_until(deadline, what, [&] {
      seen = load<Order::acquire, Scope::sys>(word);
      what.seen = seen.epoch;
      return seen.epoch == epoch();
    });
    return seen;
  }
};

/// Returns the address that a lane has. Called by all lanes.
TOKENYARD_DEVICE Peer<std::byte> address_of_lane(Peer<std::byte> mine, uint32_t lane) {
  return std::bit_cast<Peer<std::byte>>(warp::shuffle(std::bit_cast<uint64_t>(mine), lane));
}

/// Adds to a total of a link. Called by the only thread that coordinates the link in its direction.
TOKENYARD_DEVICE void count_link(const RailCall& call, uint32_t link,
                                 RailStatistics::LinkTotal total, uint64_t value) {
  const RailStatistics& statistics = call.rails.statistics;
  const uint32_t which = RailStatistics::of_link(link, total);
  statistics.totals[which] += value;
  store<Order::relaxed, Scope::sys>(statistics.shown + which, statistics.totals[which]);
}

/// Adds the time that a warp has waited to a total of the rank. Relaxed: people read it much later.
/// Called by all lanes.
TOKENYARD_DEVICE void add_role_wait(const RailCall& call, RailStatistics::RoleTotal total,
                                    uint64_t waited_ns) {
  if (warp::elect() && waited_ns != 0)
    add<Order::relaxed, Scope::gpu>(call.rails.statistics.totals + total, waited_ns);
}

/// The time that a warp's waits have taken, of one warp per block. All lanes call its functions,
/// alike.
class RoleWaits {
 public:
  TOKENYARD_DEVICE explicit RoleWaits(const RailCall& call)
      : call_(call), counts_(call.mover() == 0) {}
  /// Runs `wait` and counts its time.
  template <class Wait>
  TOKENYARD_DEVICE auto time(Wait wait) {
    if (!counts_) return wait();
    const uint64_t begun_ns = now_ns();
    const auto result = wait();
    waited_ns_ += now_ns() - begun_ns;
    return result;
  }
  /// Adds what was counted to a total of the rank.
  TOKENYARD_DEVICE void add_to(RailStatistics::RoleTotal total) {
    add_role_wait(call_, total, waited_ns_);
    waited_ns_ = 0;
  }

 private:
  const RailCall& call_;
  const bool counts_;
  uint64_t waited_ns_ = 0;
};

/// Begins the call; returns false if an earlier one has failed. Called by the whole block, which
/// synchronizes.
TOKENYARD_DEVICE bool begin_rail_call(const throughput::CallParams& params,
                                      const RailWorkspace& workspace, RailShared& shared,
                                      const CallDeadline& deadline) {
  for (uint32_t i = thread::index(); i < kMoversMax * kHeldMax; i += block::threads())
    shared.full[i].init(1);
  fence_async_shared();
  if (thread::index() == 0) {
    throughput::look_at_call(params, shared.call, deadline);
    if (!shared.call.failed && workspace.retired != 0) {
      deadline.fail(Failure::refused,
                    Awaited{.phase = static_cast<uint32_t>(Phase::retired), .rank = params.rank});
      shared.call.failed = true;
    }
    if (!shared.call.failed) throughput::pass_epoch(params, shared.call.epoch);
    shared.refused_token = shared.refusing_block = shared.differing_rank = kNone;
  }
  block::sync();
  return !shared.call.failed;
}

/// Counts a part of the rank's accesses to its host's memory as ended: those of a block's movers,
/// or the receiver's of its own window. The last of them tells the ranks of this host, a lane each.
/// Called by one warp, which has synchronized with the others of its part.
TOKENYARD_DEVICE void end_part(const RailCall& call) {
  if (warp::any(call.far_deadline.failed())) return;
  // acq_rel: passes on the accesses of the other parts.
  const uint32_t before =
      warp::once([&] { return fetch_add<Order::acq_rel, Scope::gpu>(&call.workspace().ended, 1); });
  if (before != grid::blocks()) return;
  // Orders the accesses of all parts before the words.
  fence<Scope::sys>();
  for (uint32_t place = warp::lane(); place < call.rails.hosts.locals; place += kWarpLanes)
    store<Order::relaxed, Scope::sys>(
        call.rails.word<uint32_t>(call.rails.hosts.local(place),
                                  call.rails.layout.finished(call.rails.hosts.place)),
        call.epoch());
}

/// Called by all movers of a block, whose copies are complete.
TOKENYARD_DEVICE void end_moves(const RailCall& call) {
  NamedBarrier(RailBarrier::moved).sync(call.movers() * kWarpLanes);
  if (call.mover() == 0) end_part(call);
}

/// Waits until every rank of this host has ended its accesses. Called by the receiver of block 0.
/// Acquire: orders their stores before what runs after this kernel.
TOKENYARD_DEVICE void await_finished(const RailCall& call) {
  const Hosts& hosts = call.rails.hosts;
  const throughput::Statistics& statistics = call.params.statistics;
  const uint64_t begun_ns = now_ns();
  for (uint32_t place = warp::lane(); place < hosts.locals; place += kWarpLanes) {
    const uint32_t rank = hosts.local(place);
    Awaited what{
        .phase = static_cast<uint32_t>(Phase::finished), .rank = rank, .expected = call.epoch()};
    const Peer<uint32_t> word =
        call.rails.word<uint32_t>(call.params.rank, call.rails.layout.finished(place));
    const bool ended = wait_until(call.host_deadline, what, [&] {
      const uint32_t seen = load<Order::acquire, Scope::sys>(word);
      what.seen = seen;
      return seen == call.epoch();
    });
    if (ended) throughput::count_up(statistics, statistics.waited_for(rank), now_ns() - begun_ns);
  }
}

/// Ends the call. Called by the whole block; the last block of the rank prepares the next call.
/// `slots_out`, `slots_in`: of this call, by link. acq_rel: no block uses a word any more that the
/// last one changes.
template <class SlotsOut, class SlotsIn>
TOKENYARD_DEVICE void end_rail_call(const RailCall& call, SlotsOut slots_out, SlotsIn slots_in) {
  block::sync();
  if (warp::index() != 0) return;
  RailWorkspace& workspace = call.workspace();
  const uint32_t before =
      warp::once([&] { return fetch_add<Order::acq_rel, Scope::gpu>(&workspace.done, 1); });
  if (before + 1 != grid::blocks()) return;
  if (!call.far_deadline.failed()) {
    for (uint32_t link = warp::lane(); link < call.links(); link += kWarpLanes) {
      LinkCounts& counts = call.rails.tables.counts(link);
      counts.first_out += slots_out(link);
      counts.first_in += slots_in(link);
      counts.claimed = counts.first_in;
      counts.next_sum = counts.delivered = 0;
    }
  }
  const RailStatistics& statistics = call.rails.statistics;
  for (uint32_t total = warp::lane(); total < RailStatistics::kRoleTotals; total += kWarpLanes)
    store<Order::relaxed, Scope::sys>(statistics.shown + total,
                                      load<Order::relaxed, Scope::gpu>(statistics.totals + total));
  if (!warp::elect()) return;
  ++workspace.calls;
  workspace.next_token = workspace.next_near = workspace.ended = workspace.done = 0;
  workspace.delivered = 0;
}

}  // namespace tokenyard::internode
