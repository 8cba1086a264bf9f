/// The members of a world of processes, on which their control planes agree (membership/
/// membership.hpp). Messages between ranks still travel over the world's mesh; this says who is in.
///
///  - A rank that the others have agreed to be lost is expelled from the mesh, which ends the
///    waits for it in every world over this mesh.
///  - A rank that has been evicted marks itself, and its waits end with OutOfTouch.
///  - A rank that leaves says so over the mesh, behind what it has sent; the agreement on it marks
///    nothing.
///
/// Slots of the membership are those of the mesh. The witness is memory that the ranks share, since
/// they are on one host, so it outlives any of them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "control/control.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/mesh.hpp"

namespace tokenyard {

class ProcessMembership final : private control::Participant {
 public:
  /// Founds the membership of all ranks on the mesh. Collective. `interrupt` is called while it
  /// waits, and may throw. Throws what collective_step throws.
  static std::shared_ptr<ProcessMembership> found(Bootstrap& bootstrap, TimePoint until,
                                                  const std::function<void()>& interrupt);
  /// Says goodbye, over the mesh too if nobody else holds it.
  ~ProcessMembership() override;
  ProcessMembership(const ProcessMembership&) = delete;
  ProcessMembership& operator=(const ProcessMembership&) = delete;

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

 private:
  /// Time for links to all ranks, and for the goodbye. The mesh says goodbye, too, so hanging up is
  /// not taken for a death.
  static constexpr std::chrono::seconds kLinksMax{2};
  /// A reason to end an epoch reaches all members at once; heartbeats only show that a rank lives.
  static constexpr std::chrono::milliseconds kHeartbeat{500};
  /// Interval between requests to evict a member that lives and was kept.
  static constexpr std::chrono::seconds kAskAgain{1};

  struct Shortage {
    std::vector<uint32_t> answering;
    uint32_t needed;
  };

  explicit ProcessMembership(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {}
  std::vector<std::byte> listen(const FileDescriptor& memory,
                                const std::function<void()>& interrupt);

  std::vector<control::GroupProgress> freeze(control::Epoch epoch) override;
  void install(const control::Verdict& verdict, const control::Contacts& contacts) override;
  void fenced(control::Epoch epoch, const std::string& why) override;
  void quorum_missing(const std::vector<control::Slot>& answering, uint32_t needed) override;
  bool is_excused(const control::Member& member, control::Epoch since) const;

  mutable std::mutex mutex_;
  std::shared_ptr<Mesh> mesh_;  ///< null once it has said goodbye
  control::View view_;
  std::map<control::Member, control::Epoch> excused_;  ///< the last epoch that excused each
  std::optional<Shortage> shortage_;
  std::shared_ptr<control::Store> witness_;
  std::unique_ptr<control::Control> control_;
};

}  // namespace tokenyard
