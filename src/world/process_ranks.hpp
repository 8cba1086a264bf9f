/// The ranks of a world that are processes: their messages, and who of them is in. Both stand on
/// one control plane (control/control.hpp), which the worlds that are rebuilt from one another
/// share.
///
///  - The ranks meet in a store that rank 0 serves at the address of the rendezvous. Nobody joins,
///    and nobody is listened to, without the job's secret.
///  - A rank whose connection closes is lost at once, as is one that the others have agreed to be
///    lost; in both cases behind what it has sent (control/exchange.hpp). That ends the waits for
///    it in every world over this mesh.
///  - A rank that has been evicted marks itself, and its waits end with OutOfTouch.
///  - A rank that leaves says so behind what it has sent; the agreement on it marks nothing.
///
/// Slots of the membership are those of the mesh. The witness is memory that the ranks share, since
/// they are on one host, so it outlives any of them.
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

#include "control/control.hpp"
#include "device/accelerator.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/mesh.hpp"
#include "tokenyard/world.hpp"

namespace tokenyard {

class ProcessRanks final : public Mesh, private control::Inbox, private control::Participant {
 public:
  /// Meets the other ranks. Throws PeerTimeout naming a rank that did not come, InvalidArgument if
  /// `where` is invalid or contradicts another rank's, or OsError.
  static std::shared_ptr<ProcessRanks> connect(const Rendezvous& where,
                                               const WorldOptions& options);
  /// Says goodbye, and waits until no other rank counts on this one, but not long.
  ~ProcessRanks() override;
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  /// Shares the witness, without which a half of the ranks cannot go on. Collective. Throws what
  /// collective_step throws.
  void share_witness(Bootstrap& bootstrap, TimePoint until);
  /// Stops to serve the store. Only once all ranks have met.
  void close_store();

  control::View view() const;
  /// Returns `view().epoch`.
  control::Epoch epoch() const;
  /// Has the members agree to go on without these slots, and waits until this process knows it.
  /// Returns those that stay after all, because they waited for a slot that was lost after epoch
  /// `since` (membership::Verdict::excused). Calls `check` while it waits, which may throw. Throws
  /// PeerTimeout naming a slot that is still a member at `until`, or QuorumLost, in slots, if too
  /// few members answer to agree.
  std::vector<uint32_t> evict(std::span<const uint32_t> slots, control::Epoch since,
                              Accelerator& accelerator, TimePoint until,
                              const std::function<void()>& check);

  /// Throws Unsupported: a process says goodbye only when its mesh is destroyed.
  void leave() override;
  uint32_t slot() const override { return where_.rank; }
  uint32_t slots() const override { return where_.size; }
  void send(uint32_t to, const Message& message) override;
  bool sent() const override { return unsent_.load() == 0; }
  Mailbox& mailbox() override { return mailbox_; }
  bool one_process() const override { return false; }
  std::string name() const override { return "TCP"; }

 private:
  /// Limit of the bytes of a message, and of the name of its call.
  static constexpr size_t kBytesMax = size_t{64} << 20, kWhatMax = 4096;
  /// Time for the goodbye, after which nobody waits for this process.
  static constexpr std::chrono::seconds kGoodbyeMax{2};
  /// A reason to end an epoch reaches all members at once; heartbeats only show that a rank lives.
  static constexpr std::chrono::milliseconds kHeartbeat{500};
  /// Interval between requests to evict a member that lives and was kept.
  static constexpr std::chrono::seconds kAskAgain{1};

  struct Shortage {
    std::vector<uint32_t> answering;
    uint32_t needed;
  };

  explicit ProcessRanks(const Rendezvous& where) : where_(where), mailbox_(where.size) {}
  void meet(const WorldOptions& options);

  // On the control thread.
  bool received(control::Slot from, std::vector<std::byte> bytes) override;
  void gone(control::Slot peer, bool said_goodbye) override;
  void evicted() override;

  // On the participant's thread.
  std::vector<control::GroupProgress> freeze(control::Epoch epoch) override;
  void install(const control::Verdict& verdict, const control::Contacts& contacts) override;
  void fenced(control::Epoch, const std::string&) override {}
  void quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) override;
  bool is_excused(const control::Member& member, control::Epoch since) const;

  const Rendezvous where_;
  Mailbox mailbox_;
  std::atomic<uint32_t> unsent_ = 0;  ///< messages on their way to the system
  mutable std::mutex mutex_;
  control::View view_;
  std::map<control::Member, control::Epoch> excused_;  ///< the last epoch that excused each
  std::optional<Shortage> shortage_;
  std::unique_ptr<control::Control> control_;  ///< null if this rank is alone
};

}  // namespace tokenyard
