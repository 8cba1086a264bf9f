#include "world/process_membership.hpp"

#include <algorithm>
#include <utility>

#include "control/shared_register.hpp"
#include "fabric/collective_step.hpp"
#include "fabric/fd_exchange.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard {

std::shared_ptr<ProcessMembership> ProcessMembership::found(
    Bootstrap& bootstrap, TimePoint until, const std::function<void()>& interrupt) {
  FileDescriptor own;
  collective_step(bootstrap, "membership: memory", until,
                  [&] { own = control::SharedRegister::make(bootstrap.size()); });
  const auto memories = exchange_fds(bootstrap, own.native(), "membership: register", until);

  std::shared_ptr<ProcessMembership> membership(new ProcessMembership(bootstrap.mesh()));
  const std::function<std::vector<std::byte>()> listen = [&] {
    return membership->listen(memories.front(), interrupt);
  };
  const std::string what = "membership: endpoints";
  std::vector<control::ControlEndpoint> founders;
  for (const auto& bytes : collective_step(bootstrap, what, until, listen)) {
    const auto endpoint = control::decode_endpoint(bytes);
    const auto rank = static_cast<uint32_t>(founders.size());
    if (!endpoint || endpoint->member.slot != rank) {
      throw InvalidArgument("endpoint", "that of the rank's control plane", "other bytes", rank);
    }
    founders.push_back(*endpoint);
  }
  membership->control_->found_with(*membership, {}, founders, membership->witness_);
  return membership;
}

std::vector<std::byte> ProcessMembership::listen(const FileDescriptor& memory,
                                                 const std::function<void()>& interrupt) {
  const uint32_t slot = mesh_->slot(), slots = mesh_->slots();
  const auto shared = std::make_shared<control::SharedRegister>(memory, slot, slots);
  witness_ = shared;
  control::ControlOptions options;
  options.secret = shared->secret();
  options.slot = slot;
  options.slots = options.slots_max = slots;
  options.address = "127.0.0.1";
  options.timeout = kLinksMax;
  options.membership.heartbeat = kHeartbeat;
  options.membership.witness = true;
  options.interrupt = interrupt;
  control_ = std::make_unique<control::Control>(std::move(options));
  return control::encode(control_->endpoint());
}

ProcessMembership::~ProcessMembership() {
  if (!control_) return;
  // The members agree on it while the mesh says its goodbye.
  control_->leave();
  std::shared_ptr<Mesh> mesh;
  {
    const std::lock_guard lock(mutex_);
    mesh = std::move(mesh_);
  }
  mesh.reset();
  control_->stop();
}

control::View ProcessMembership::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

control::Epoch ProcessMembership::epoch() const {
  const std::lock_guard lock(mutex_);
  return view_.epoch;
}

std::vector<uint32_t> ProcessMembership::evict(std::span<const uint32_t> slots,
                                               control::Epoch since, Accelerator& accelerator,
                                               TimePoint until,
                                               const std::function<void()>& check) {
  const TimePoint start = accelerator.now();
  std::vector<uint32_t> present, excused;
  control::Epoch asked_in = 0;
  TimePoint ask_again{};
  const auto all_are_out = [&] {
    check();
    const control::View members = view();
    present.clear();
    excused.clear();
    for (const uint32_t slot : slots) {
      if (const auto member = members.at(slot))
        (is_excused(*member, since) ? excused : present).push_back(slot);
    }
    if (present.empty()) return true;
    const TimePoint now = accelerator.now();
    if (members.epoch != asked_in || now >= ask_again) {
      for (const uint32_t slot : present) control_->abandon(*members.at(slot));
      asked_in = members.epoch;
      ask_again = now + kAskAgain;
    }
    return false;
  };
  if (all_are_out() || accelerator.wait_until(until, all_are_out)) return excused;
  const std::lock_guard lock(mutex_);
  if (shortage_) throw QuorumLost(shortage_->answering, shortage_->needed);
  const std::chrono::duration<double> waited = accelerator.now() - start;
  throw PeerTimeout({.rank = present.front(),
                     .phase = "rebuild: agree to go on without it",
                     .expected = slots.size(),
                     .seen = slots.size() - present.size(),
                     .waited_s = waited.count()});
}

/// A kernel commits nothing that others could undo.
std::vector<control::GroupProgress> ProcessMembership::freeze(control::Epoch) {
  return {};
}

void ProcessMembership::install(const control::Verdict& verdict, const control::Contacts&) {
  const std::lock_guard lock(mutex_);
  view_ = verdict.next;
  for (const control::Slot slot : verdict.excused) {
    if (const auto member = view_.at(slot)) excused_[*member] = view_.epoch;
  }
  shortage_.reset();
  for (const control::Slot slot : verdict.lost) {
    if (mesh_ && std::ranges::count(verdict.left, slot) == 0) mesh_->expel(slot);
  }
}

bool ProcessMembership::is_excused(const control::Member& member, control::Epoch since) const {
  const std::lock_guard lock(mutex_);
  const auto found = excused_.find(member);
  return found != excused_.end() && found->second > since;
}

void ProcessMembership::fenced(control::Epoch, const std::string&) {
  const std::lock_guard lock(mutex_);
  if (mesh_) mesh_->mailbox().mark(mesh_->slot(), PeerState::lost);
}

void ProcessMembership::quorum_missing(const std::vector<control::Slot>& answering,
                                       uint32_t needed) {
  const std::lock_guard lock(mutex_);
  shortage_.reset();
  if (answering.size() < needed) shortage_ = Shortage{answering, needed};
}

}  // namespace tokenyard
