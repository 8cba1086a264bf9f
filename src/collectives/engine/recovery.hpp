/// The calls by which a rank goes on after a failure: shrink, replace, grow, recover, evict. They
/// have no threads or clocks: the caller advances them after each change, in a real process and in
/// a simulated one alike.
///
/// Invariant: a call asks for a state, relative to what this rank has seen, never for an event. So
/// it ends, whichever call brings the state about and whenever:
/// - `replace` is done once the slot's process came after one that this rank knows to be lost. If
///   it knows of no loss, it waits for the next process to take the slot. It forgets that slot's
///   losses and nothing else.
/// - `grow` is done once all slots up to the number asked for by this rank's own calls have been
///   filled. It forgets no loss.
/// - `recover` is done once this rank has installed what the others have agreed on and, if asked,
///   every slot is held. It needs no other rank's call, unless a group has stopped without all its
///   ranks knowing (a deadline): then it is a `shrink`.
/// - `shrink` is the only step that all ranks take together; none can have taken it without this
///   rank.
///
/// Late requests change nothing (membership.hpp), and a call that gives up withdraws its requests.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/engine/engine.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

/// Makes recovery calls, and keeps what this process has put behind it.
class Recovery {
 public:
  /// A call under way. Destroying it before it is done withdraws its requests.
  class Call {
   public:
    virtual ~Call() = default;
    /// Asks for what is still missing. Returns true once the call is done and groups work again.
    virtual bool advance() = 0;
    /// Returns the facts for a timeout at this moment.
    virtual WaitFacts missing() const = 0;
  };

  /// Both arguments must outlive this and every call.
  Recovery(Engine& engine, control::MembershipControl& control)
      : engine_(engine), control_(control) {}
  /// Called once this process is a member.
  void begin(Slot self);

  std::unique_ptr<Call> shrink();
  std::unique_ptr<Call> replace(Slot slot);
  /// Throws InvalidArgument if the job would exceed `slots_most`.
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
  Epoch shrunk_in_ = 0;  ///< last recovering epoch that a call here has returned
  uint32_t slots_ = 0;   ///< as many as this rank's calls have asked for
};

}  // namespace tokenyard::collectives
