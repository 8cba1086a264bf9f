/// Deadlines of calls in which very many threads wait at once. A read of the host's abort flag
/// crosses PCIe. If every thread read it often, thousands of reads would queue up, and each wait
/// would last as long as its read. So the threads of a block take turns: each has one turn in
/// block::threads() of kTurnNs each, and reads the flag at its first look after its turn has come.
/// A block thus reads the flag at most about once per kTurnNs, whatever number of its threads wait
/// and for however long the call has run; whoever finds it set ends the waits of the whole rank.
/// Time decides, not the number of polls, and no word is shared.
#pragma once

#include "device/apart.hpp"
#include "device/empty_slots.hpp"
#include "device/guarded_wait.hpp"
#include "device/identity.hpp"

namespace tokenyard {

inline constexpr uint32_t kTurnNs = 1 << 18;

namespace block_waits {

#if TOKENYARD_DEVICE_BODY
inline constexpr uint32_t kLookEvery = 64;  // polls between looks; about 50 us
#else
inline constexpr uint32_t kLookEvery = 1;  // Every failed poll switches to other threads anyway.
#endif
static_assert(last_look_for(0) % kLookEvery == 0 && last_look_for(1) % kLookEvery == 0);

/// The result of a look that ends the wait; no poll counter reaches it.
inline constexpr uint32_t kOver = UINT32_MAX;

/// A wait's polls, and the calling thread's next turn; 0: not known yet.
struct Looks {
  uint32_t polls = 0, turn = 0;
};

/// Returns the first of the calling thread's turns after `turn`.
TOKENYARD_DEVICE uint32_t turn_after(uint32_t turn) {
  const uint32_t threads = block::threads();
  return turn + 1 + (thread::index() + threads - (turn + 1) % threads) % threads;
}

/// Checks on a wait. Arguments travel in registers, as in apart.hpp.
TOKENYARD_DEVICE_APART Looks look(const WaitContext* wait_context, uint64_t start_ns,
                                  uint32_t polls, uint32_t turn, uint32_t phase, uint32_t rank,
                                  uint64_t expected, uint64_t seen, bool from_rank,
                                  uint64_t empty) {
  const Deadline deadline(*wait_context, start_ns);
  rank = EmptySlots{empty}.slot_of(rank);
  const Awaited what{phase, rank, expected, seen, from_rank};
  const Looks over{kOver, turn};
  if (deadline.failed()) return over;
  const uint64_t now = now_ns();
  if (now - start_ns >= wait_context->timeout_ns) {
    deadline.fail(Failure::deadline, what);
    return over;
  }
  if (polls != last_look_for(rank)) {
    if (polls >= kPollsMax) polls = 0;  // After very many polls.
    const auto now_turn = static_cast<uint32_t>(now / kTurnNs);
    if (turn == 0) return {polls, turn_after(now_turn)};
    if (static_cast<int32_t>(now_turn - turn) < 0) return {polls, turn};
    turn = turn_after(now_turn);
  }
  if (deadline.heed_host(polls, what)) return over;
  return {polls, turn};
}

}  // namespace block_waits

/// A Deadline whose waits read the abort flag in turns. Waits are for members; the abort flag and
/// reports name their slots.
class BlockDeadline {
 public:
  TOKENYARD_DEVICE explicit BlockDeadline(const WaitContext& wait_context, EmptySlots empty = {})
      : wait_context_(wait_context), start_ns_(now_ns()), empty_(empty) {}
  TOKENYARD_DEVICE bool failed() const { return Deadline(wait_context_, start_ns_).failed(); }
  TOKENYARD_DEVICE void fail(Failure failure, const Awaited& what) const {
    Awaited by_slot = what;
    by_slot.rank = empty_.slot_of(what.rank);
    CallDeadline(wait_context_, start_ns_).fail(failure, by_slot);
  }
  /// Called after a poll that found nothing. Returns whether the wait is over.
  TOKENYARD_DEVICE bool give_up(block_waits::Looks& looks, const Awaited& what) const {
    if (++looks.polls % block_waits::kLookEvery != 0) [[likely]]
      return false;
    looks = block_waits::look(&wait_context_, start_ns_, looks.polls, looks.turn, what.phase,
                              what.rank, what.expected, what.seen, what.from_rank, empty_.bits);
    return looks.polls == block_waits::kOver;
  }

 private:
  const WaitContext& wait_context_;
  uint64_t start_ns_;
  EmptySlots empty_;
};

template <class Condition>
TOKENYARD_DEVICE bool wait_until(const BlockDeadline& deadline, Awaited& what,
                                 Condition condition) {
  block_waits::Looks looks;
  return wait_until(what, condition, [&] { return !deadline.give_up(looks, what); });
}

}  // namespace tokenyard
