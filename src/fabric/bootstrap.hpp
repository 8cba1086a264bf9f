/// How the ranks of one world talk while they set things up: all-gather of small things, barrier,
/// and agreeing on a smaller world. Every wait has a deadline and a name.
///
/// All of it is one exchange: send to every peer, take one message from every peer. A message says
/// in which generation of the world, as which collective and for which call it was sent:
///  - generation: a world made by `rebuild` ignores messages sent in the previous one;
///  - sequence: messages left from an exchange that this rank gave up never count for the next;
///  - what: ranks that make different calls get an error instead of mixing their bytes.
///
/// A rank that rebuilds asks every peer for a world of certain slots, in a generation that it has
/// asked nobody for yet. The ranks of those slots have agreed once all ask for the same.
///
/// Invariant: no rank asks for two sets of slots in one generation, so ranks that have agreed on a
/// generation are in the same world, also if some of them rebuild the world that others have left
/// already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/accelerator.hpp"
#include "fabric/abort_flag.hpp"
#include "fabric/mesh.hpp"
#include "fabric/timeout_reports.hpp"

namespace tokenyard {

/// The slot of an absent rank: one that this world counts, and that no process fills.
inline constexpr uint32_t kAbsent = 0xffffffff;

/// The participants: one world's ranks on a mesh.
struct Membership {
  uint32_t generation = 0;
  uint32_t rank = 0;            ///< this rank's
  std::vector<uint32_t> slots;  ///< [ranks] where each sits on the mesh, ascending, or kAbsent

  /// Everybody on the mesh: rank = slot. The ranks of the slots in `absent` are absent.
  static Membership of(const Mesh& mesh, const std::vector<uint32_t>& absent = {});
  bool present(uint32_t rank) const { return slots[rank] != kAbsent; }
  /// Returns the present ones but `ranks`, ascending; they are numbered anew, and have no
  /// generation yet.
  Membership without(const std::vector<uint32_t>& ranks) const;
};

class Bootstrap final : private Mailbox::Watcher {
 public:
  using Check = std::function<void()>;

  /// Waits by `accelerator`, so that simulated ranks can wait for one another too. Rings
  /// `abort_flag` for ranks that go. Both must outlive this.
  Bootstrap(std::shared_ptr<Mesh> mesh, Membership membership, Accelerator& accelerator,
            AbortFlag& abort_flag);
  ~Bootstrap() override;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  uint32_t rank() const { return membership_.rank; }
  uint32_t size() const { return static_cast<uint32_t>(membership_.slots.size()); }
  uint32_t generation() const { return membership_.generation; }
  const Membership& membership() const { return membership_; }
  bool present(uint32_t rank) const { return membership_.present(rank); }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  Accelerator& accelerator() const { return accelerator_; }

  // Collectives. They throw PeerTimeout or PeerLost naming a rank that did not come, Cancelled, or
  // InvalidArgument where another rank made another call. An absent rank takes no part in any.

  /// Every rank's bytes, in rank order. Lengths may differ. An absent rank's are empty.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                 const std::string& what, TimePoint until);
  /// `check`: set where gone ranks do not hold it up, although they may be gone before they came.
  /// Calls it in the wait with every rank that has not come; it may throw.
  ///
  /// Of the ranks that stay, all return from such a barrier or none: one returns only once all the
  /// others have come, and nothing but what a rank did before it came makes `check` throw.
  void barrier(const std::string& what, TimePoint until,
               const std::function<void(uint32_t rank)>& check = {});
  /// Every rank's object, in rank order, null for an absent one; only where mesh().one_process().
  std::vector<std::shared_ptr<void>> share(std::shared_ptr<void> mine, const std::string& what,
                                           TimePoint until);
  /// Until `arrived(rank)` has held once for every other present rank: for what travels by other
  /// ways.
  void await_each(const std::string& what, TimePoint until,
                  const std::function<bool(uint32_t rank)>& arrived);
  /// Returns the generation of a new world of these slots, ascending, on which their ranks agree;
  /// all of them call it. `what` names the call, also in errors: ranks that agree have made the
  /// same. May be called again after a failure of the new world: every call makes a later
  /// generation than those that have returned before, on any rank.
  ///
  /// `check`: set where the slots follow from an agreement on the members. Then another rank's
  /// slots that differ are only behind or ahead, and are waited for, while `check` is called; it
  /// may throw. Without it, throws InvalidArgument naming both lists of ranks that are left out.
  uint32_t agree_on_generation(const std::vector<uint32_t>& slots, const std::string& what,
                               TimePoint until, const Check& check);
  /// Tells the others that this rank sends nothing more in this world. Their waits for what it has
  /// not sent end as if it had left. Only the first call counts.
  void say_gone_on();
  /// Tells the others that this rank's network has failed: their waits end, with a NetworkFault
  /// that says why. Any thread may call it.
  void say_network_failed(const std::string& why);
  /// The failed waits of this world's ranks, as far as this rank has heard of them.
  TimeoutReports& timeout_reports() { return timeout_reports_; }
  /// Tells all ranks that a call of `object` has failed here, in a wait for `rank`.
  void report_timeout(uint64_t object, uint32_t rank);
  /// Calls `check` in every wait from now on; it may throw. Empty: no longer.
  void check_while_waiting(Check check) { check_ = std::move(check); }

 private:
  void went(uint32_t slot, PeerState state) override;
  void said(uint32_t slot, const Message& message) override;
  void send_to_others(const Message& message);
  /// `check`: as in barrier.
  std::vector<Message> exchange(Message mine, TimePoint until,
                                const std::function<void(uint32_t rank)>& check = {});
  void ask_for(uint32_t generation, const std::vector<uint32_t>& slots, const std::string& what);
  /// Returns the ranks of this world that are not in `slots`.
  std::vector<uint32_t> ranks_without(const std::vector<uint32_t>& slots) const;
  std::vector<uint32_t> others() const;  ///< present ranks but this one
  std::optional<uint32_t> rank_at(uint32_t slot) const;
  /// Has waits for a rank end if it has asked for a later world without one that is gone from this
  /// one: it sends nothing more here. Called with the mailbox's lock.
  void note_whether_gone_on(uint32_t peer);
  /// Until `arrived(rank)` has held once for every rank of `ranks`. Throws PeerLost naming a rank
  /// that is gone if one for which `given_up` holds has not arrived.
  void await(const std::vector<uint32_t>& ranks, const std::string& what, TimePoint until,
             const std::function<bool(uint32_t rank)>& arrived,
             const std::function<bool(uint32_t rank)>& given_up = {});

  std::shared_ptr<Mesh> mesh_;
  Membership membership_;
  Accelerator& accelerator_;
  AbortFlag& abort_flag_;
  uint64_t sequence_ = 0;
  bool said_gone_on_ = false;
  uint32_t asked_, agreed_;            ///< last generation asked for, and last one agreed on
  std::vector<uint32_t> asked_slots_;  ///< slots of the world asked for in `asked_`
  /// Slots of the last world after this one that each rank has asked for; under the mailbox's lock.
  std::map<uint32_t, std::vector<uint32_t>> asked_by_;
  Check check_;
  TimeoutReports timeout_reports_;
};

inline bool is_present(const Bootstrap& ranks, uint32_t rank) {
  return ranks.present(rank);
}

}  // namespace tokenyard
