/// The ranks of a job as worlds see them: their messages, and who of them is in. Rank and slot are
/// the same here.
///
///  - A rank whose connection closes is lost at once, as is one that the others have agreed to be
///    lost; in both cases behind what it has sent (control/exchange.hpp). That ends the waits for
///    it in every world over this mesh.
///  - A rank that has been evicted marks itself, and its waits end with OutOfTouch.
///  - A rank that leaves says so behind what it has sent; the agreement on it marks nothing.
///  - A process that takes over a slot is heard from its first message on, in worlds that are made
///    with it. Worlds that its predecessor was in know that one as gone for good.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/exchange.hpp"
#include "device/accelerator.hpp"
#include "fabric/mesh.hpp"

namespace tokenyard {

class ProcessRanks final : public Mesh, public control::Inbox {
 public:
  /// `slots`: of the job as far as it is known yet.
  ProcessRanks(uint32_t slot, uint32_t slots)
      : slot_(slot), view_{.epoch = 0, .slots = slots, .members = {}}, mailbox_(slots) {}
  /// Sets the control plane, before the first message. Borrowed.
  void use(control::RankControl& control) { control_ = &control; }

  control::View view() const;
  /// Returns `view().epoch`.
  control::Epoch epoch() const;
  /// Returns the members whose process is known to be gone.
  std::vector<control::Member> gone_members() const;
  /// Has the members agree to go on without the processes that held these slots in `seen`, and
  /// waits until this process knows it. One that has succeeded them stays. Returns those that stay
  /// after all, because they live and waited for a slot that was lost after epoch `since`
  /// (membership::Verdict::excused). Calls `check` while it waits, which may throw. Throws
  /// PeerTimeout naming a slot that is still a member at `until`, or QuorumLost, in slots, if too
  /// few members answer to agree.
  std::vector<uint32_t> evict(const control::View& seen, std::span<const uint32_t> slots,
                              control::Epoch since, Accelerator& accelerator, TimePoint until,
                              const std::function<void()>& check);
  /// Waits until this process is a member and hears all others, and returns the view: until a
  /// newcomer has linked with it, and a member that is gone is none any more. Throws what `evict`
  /// throws.
  control::View await_members(Accelerator& accelerator, TimePoint until,
                              const std::function<void()>& check);

  /// Throws Unsupported: a process says goodbye only when its job ends.
  void leave() override;
  uint32_t slot() const override { return slot_; }
  uint32_t slots() const override { return view().slots; }
  void send(uint32_t to, const Message& message) override;
  bool sent() const override { return unsent_.load() == 0; }
  Mailbox& mailbox() override { return mailbox_; }
  bool one_process() const override { return false; }

  // Of control::Inbox, on the control thread.
  bool received(control::Slot from, std::vector<std::byte> bytes) override;
  void came(const control::Member& member) override;
  void gone(control::Slot peer, bool said_goodbye) override;
  void evicted() override;

  // As a control::Participant has them, on the participant's thread.
  void install(const control::Verdict& verdict);
  void quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed);

 private:
  /// Limit of the bytes of a message, and of the name of its call.
  static constexpr size_t kBytesMax = size_t{64} << 20, kWhatMax = 4096;
  /// Interval between requests to evict a member that lives and was kept.
  static constexpr std::chrono::seconds kAskAgain{1};

  struct Shortage {
    std::vector<uint32_t> answering;
    uint32_t needed;
  };

  bool is_excused(const control::Member& member, control::Epoch since) const;
  bool hears(const control::Member& member) const;

  const uint32_t slot_;
  std::atomic<uint32_t> unsent_ = 0;  ///< messages on their way to the system
  mutable std::mutex mutex_;
  control::View view_;
  std::map<control::Slot, control::Member> heard_;     ///< the processes that the mailbox is of
  std::map<control::Member, control::Epoch> excused_;  ///< the last epoch that excused each
  std::optional<Shortage> shortage_;
  Mailbox mailbox_;
  control::RankControl* control_ = nullptr;
};

}  // namespace tokenyard
