/// The calls by which a rank goes on after a failure: shrink, replace, grow, recover, evict.
/// Without threads and clocks of their own: whoever waits looks again after every piece of news, in
/// a real process and in a simulated one alike.
///
/// Invariant: a call asks for a state, relative to what this rank has seen, and never for an event.
/// So it ends whoever has brought the state about, and whenever:
/// - `replace` is done once the slot is held by a process that came after one this rank knows to be
///   lost; only where none is known to be lost it waits for the next one that takes the slot.
///   It forgets that slot's losses and nothing else.
/// - `grow` is done once the slots up to those counted by this rank's own calls have been filled.
///   It forgets no loss.
/// - `recover` is done once this rank has installed what the others have agreed on; where asked,
///   once every slot is held. It needs no other rank's call unless a group has stopped without
///   every rank of it having been told (a deadline): then it is a `shrink`.
/// - `shrink` alone is a step that all take together; nobody can have taken it without this rank.
/// Wishes that come late change nothing (membership.hpp), and those of a call that has given up are
/// withdrawn.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

/// What this process has put behind it.
class Recovery {
 public:
  /// A call under way. Dropped before it is done, its wishes are withdrawn.
  class Call {
   public:
    virtual ~Call() = default;
    /// Asks for what is still missing. True: done, and groups work again as the call promises.
    virtual bool advance() = 0;
    /// What a deadline that passes now is told.
    virtual WaitFacts missing() const = 0;
  };

  /// Both must outlive this and every call.
  Recovery(Engine& engine, control::MembershipControl& control)
      : engine_(engine), control_(control) {}
  /// Once this process is a member.
  void begin(Slot self);

  std::unique_ptr<Call> shrink();
  std::unique_ptr<Call> replace(Slot slot);
  /// Throws InvalidArgument beyond `slots_most`.
  std::unique_ptr<Call> grow(uint32_t slots, uint32_t slots_most);
  std::unique_ptr<Call> recover(bool wait_for_replacements);
  std::unique_ptr<Call> evict(Slot slot);

 private:
  class Wish;
  class Shrink;
  class Replace;
  class Grow;
  class Recover;
  class Evict;

  Epoch shrunk_in() const;
  void note_shrunk(Epoch epoch);

  Engine& engine_;
  control::MembershipControl& control_;
  mutable std::mutex mutex_;
  Epoch shrunk_in_ = 0;  ///< the last epoch that mended and that a call here has returned
  uint32_t slots_ = 0;   ///< as many as this rank's calls have asked for
};

}  // namespace tokenyard::collectives
