#include "world/departures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "job/process_ranks.hpp"

namespace tokenyard {

namespace {

constexpr const char* kRebuild = "rebuild";

}  // namespace

Departures::Departures(WorldAccess::Impl& impl, const std::vector<uint32_t>& named)
    : impl_(impl), named_(named.begin(), named.end()) {
  const uint32_t own = impl.bootstrap->rank();
  std::erase_if(named_, [&](uint32_t rank) { return rank < ranks() && is_absent(rank); });
  if (!named_.empty() && *named_.rbegin() >= ranks()) {
    throw InvalidArgument("without", fmt::format("ranks below {}", ranks()),
                          fmt::format("{}", *named_.rbegin()));
  }
  if (named_.contains(own)) {
    throw InvalidArgument("without", "ranks other than this one", fmt::format("{}", own));
  }
}

const std::vector<uint32_t>& Departures::agree(TimePoint until) {
  std::vector<uint32_t> slots;
  for (const uint32_t rank : named_) slots.push_back(slot_of(rank));
  try {
    const auto excused = impl_.processes->evict(
        impl_.members, slots, impl_.epoch, *impl_.accelerator, until, [this] { check_ended(); });
    for (const uint32_t slot : excused) named_.erase(rank_of(slot));
  } catch (const PeerTimeout& error) {
    WaitFacts facts = error.facts;
    facts.rank = rank_of(facts.rank);
    throw PeerTimeout(facts);
  } catch (const QuorumLost& error) {
    std::vector<uint32_t> answering;
    for (const uint32_t slot : error.answering) {
      if (rank_of(slot) < ranks()) answering.push_back(rank_of(slot));
    }
    throw QuorumLost(answering, error.needed);
  }
  members_ = impl_.processes->view();
  gone_.clear();
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (is_absent(rank) || is_out(rank, members_)) gone_.push_back(rank);
  return gone_;
}

void Departures::require_only(const std::vector<uint32_t>& gone) const {
  check_ended();
  if (gone == gone_ && impl_.processes->epoch() == members_.epoch) return;
  const control::View members = impl_.processes->view();
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    const bool known = is_absent(rank) || std::ranges::binary_search(gone, rank);
    if (!known && is_out(rank, members)) throw PeerLost({.rank = rank, .phase = kRebuild});
  }
}

bool Departures::have_grown(const std::vector<uint32_t>& gone) {
  bool more = false;
  const Mailbox& mailbox = impl_.bootstrap->mesh()->mailbox();
  const control::View members = impl_.processes->view();
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    if (is_absent(rank)) continue;
    const uint32_t slot = slot_of(rank);
    const bool here = !is_out(rank, members) && mailbox.state(slot) == PeerState::present;
    if (here || rank == impl_.bootstrap->rank() || std::ranges::binary_search(gone, rank)) continue;
    named_.insert(rank);
    more = true;
  }
  return more;
}

void Departures::check_ended() const {
  impl_.abort_flag->check_ended(kRebuild);
}

uint32_t Departures::ranks() const {
  return impl_.bootstrap->size();
}

bool Departures::is_absent(uint32_t rank) const {
  return !impl_.bootstrap->present(rank);
}

bool Departures::is_out(uint32_t rank, const membership::View& members) const {
  const auto process = impl_.members.at(slot_of(rank));
  return !process || !members.contains(*process);
}

uint32_t Departures::slot_of(uint32_t rank) const {
  return impl_.bootstrap->membership().slots[rank];
}

uint32_t Departures::rank_of(uint32_t slot) const {
  const auto& slots = impl_.bootstrap->membership().slots;
  return static_cast<uint32_t>(std::ranges::find(slots, slot) - slots.begin());
}

}  // namespace tokenyard
