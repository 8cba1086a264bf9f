#include "fabric/bootstrap.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "tokenyard/error.hpp"

namespace tokenyard {

namespace {

/// How long a survivor that asks for another smaller world than this rank has to change its mind:
/// it may have seen fewer deaths when it first asked.
constexpr std::chrono::milliseconds kAgreementGrace{500};

/// How long a rank waits for its own messages to leave. A peer that has stopped takes none.
constexpr std::chrono::seconds kSendingMax{1};

}  // namespace

Membership Membership::of(const Mesh& mesh, const std::vector<uint32_t>& absent) {
  Membership all{.generation = 1, .rank = mesh.slot(), .slots = {}};
  all.slots.resize(mesh.slots());
  std::iota(all.slots.begin(), all.slots.end(), 0u);
  for (const uint32_t slot : absent) all.slots.at(slot) = kAbsent;
  return all;
}

Membership Membership::without(const std::vector<uint32_t>& ranks) const {
  Membership next;
  for (uint32_t peer = 0; peer < slots.size(); ++peer) {
    if (peer == rank) next.rank = static_cast<uint32_t>(next.slots.size());
    if (present(peer) && std::ranges::count(ranks, peer) == 0) next.slots.push_back(slots[peer]);
  }
  return next;
}

Bootstrap::Bootstrap(std::shared_ptr<Mesh> mesh, Membership membership, Accelerator& accelerator,
                     AbortFlag& abort_flag)
    : mesh_(std::move(mesh)),
      membership_(std::move(membership)),
      accelerator_(accelerator),
      abort_flag_(abort_flag),
      asked_(membership_.generation),
      agreed_(membership_.generation) {
  mesh_->mailbox().watch(*this);
  mesh_->mailbox().note_generation(generation());
}

Bootstrap::~Bootstrap() {
  mesh_->mailbox().unwatch(*this);
}

void Bootstrap::went(uint32_t slot, PeerState state) {
  const std::optional<uint32_t> gone = rank_at(slot);
  if (gone == rank()) return abort_flag_.left_out(others().empty() ? rank() : others().front());
  if (!gone) return;
  if (state == PeerState::lost) abort_flag_.lost(*gone);
  if (state == PeerState::left) abort_flag_.left(*gone);
  for (const auto& asked : asked_by_) note_whether_gone_on(asked.first);
}

void Bootstrap::said(uint32_t slot, const Message& message) {
  const std::optional<uint32_t> by = rank_at(slot);
  if (message.kind == MessageKind::gone_on) {
    if (by && message.generation == generation()) abort_flag_.gone_on(*by);
    return;
  }
  if (message.kind == MessageKind::network_failed) {
    if (by && message.generation == generation())
      abort_flag_.network_failed(
          {.rank = rank(), .peer = *by, .check = "thread", .phase = {}, .cause = message.what});
    return;
  }
  if (message.kind == MessageKind::timeout_report) {
    if (!by || message.generation != generation() || message.slots.size() != 1) return;
    if (const auto of = rank_at(message.slots.front()))
      timeout_reports_.note(message.sequence, *by, *of);
    return;
  }
  const bool stays = std::ranges::count(message.slots, membership_.slots[rank()]) != 0;
  if (!by || message.generation <= generation()) return;
  if (!stays) abort_flag_.left_out(*by);
  asked_by_[*by] = message.slots;
  note_whether_gone_on(*by);
}

std::vector<std::vector<std::byte>> Bootstrap::all_gather(std::span<const std::byte> mine,
                                                          const std::string& what,
                                                          TimePoint until) {
  Message message{.what = "all_gather " + what, .bytes = {mine.begin(), mine.end()}, .object = {}};
  std::vector<std::vector<std::byte>> gathered;
  for (Message& theirs : exchange(std::move(message), until)) {
    gathered.push_back(std::move(theirs.bytes));
  }
  return gathered;
}

void Bootstrap::barrier(const std::string& what, TimePoint until,
                        const std::function<void(uint32_t rank)>& check) {
  exchange(Message{.what = "barrier " + what, .bytes = {}, .object = {}}, until, check);
}

std::vector<std::shared_ptr<void>> Bootstrap::share(std::shared_ptr<void> mine,
                                                    const std::string& what, TimePoint until) {
  if (!mesh_->one_process()) throw InternalError("objects cannot be shared between processes");
  Message message{.what = "share " + what, .bytes = {}, .object = std::move(mine)};
  std::vector<std::shared_ptr<void>> objects;
  for (Message& theirs : exchange(std::move(message), until)) {
    objects.push_back(std::move(theirs.object));
  }
  return objects;
}

std::vector<Message> Bootstrap::exchange(Message mine, TimePoint until,
                                         const std::function<void(uint32_t rank)>& check) {
  mine.kind = MessageKind::collective;
  mine.generation = generation();
  mine.sequence = sequence_++;
  std::vector<Message> messages(size());
  send_to_others(mine);
  await_each(mine.what, until, [&](uint32_t peer) {
    // In this order: what a peer sent before it went has arrived before it is marked as gone.
    const bool is_gone = check && std::ranges::count(abort_flag_.gone_ranks(), peer) != 0;
    auto taken = mesh_->mailbox().take(membership_.slots[peer], mine.generation, mine.sequence);
    if (!taken && check && !is_gone) check(peer);
    if (!taken) return is_gone;
    if (taken->what != mine.what) {
      throw InvalidArgument("order of collective calls", fmt::format("'{}'", mine.what),
                            fmt::format("'{}'", taken->what), peer);
    }
    messages[peer] = std::move(*taken);
    return true;
  });
  // A rank that is killed after an exchange has taken part in it.
  if (!mesh_->sent()) {
    accelerator_.wait_until(std::min(until, accelerator_.now() + kSendingMax),
                            [this] { return mesh_->sent(); });
  }
  messages[rank()] = std::move(mine);
  return messages;
}

/// Survivors may ask for different generations: all raise theirs to the highest, and have agreed
/// once all ask for the same. One that they have agreed on may have messages in it, so a further
/// call asks for a later one.
uint32_t Bootstrap::agree_on_generation(const std::vector<uint32_t>& slots, const std::string& what,
                                        TimePoint until, const Check& check) {
  std::vector<uint32_t> survivors;
  for (const uint32_t peer : others()) {
    if (std::ranges::binary_search(slots, membership_.slots[peer])) survivors.push_back(peer);
  }
  const TimePoint grace_end = std::min(until, accelerator_.now() + kAgreementGrace);
  const bool asks_again = asked_ > agreed_ && asked_slots_ == slots;
  const uint32_t next = std::max(asked_, mesh_->mailbox().newest_generation()) + 1;
  for (uint32_t mine = asks_again ? asked_ : next, highest = mine;; mine = highest) {
    ask_for(mine, slots, what);
    await(survivors, what, until, [&](uint32_t peer) {
      if (check) check();
      const auto call = mesh_->mailbox().latest_rebuild(membership_.slots[peer]);
      if (!call || call->generation <= agreed_ || call->what != what) return false;
      if (call->slots == slots) {
        highest = std::max(highest, call->generation);
        return call->generation >= mine;
      }
      if (check || accelerator_.now() < grace_end) return false;
      throw InvalidArgument("without", fmt::format("{}", ranks_without(slots)),
                            fmt::format("{}", ranks_without(call->slots)), peer);
    });
    if (highest == mine) return agreed_ = mine;
  }
}

void Bootstrap::ask_for(uint32_t generation, const std::vector<uint32_t>& slots,
                        const std::string& what) {
  asked_ = generation;
  asked_slots_ = slots;
  mesh_->mailbox().note_generation(generation);
  // Asks the others, too: one of them that lives and calls learns why it is not waited for.
  send_to_others(
      {.kind = MessageKind::rebuild, .generation = generation, .what = what, .slots = slots});
}

std::vector<uint32_t> Bootstrap::ranks_without(const std::vector<uint32_t>& slots) const {
  std::vector<uint32_t> ranks;
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (!std::ranges::binary_search(slots, membership_.slots[peer])) ranks.push_back(peer);
  }
  return ranks;
}

void Bootstrap::say_gone_on() {
  if (!std::exchange(said_gone_on_, true))
    send_to_others({.kind = MessageKind::gone_on, .generation = generation()});
}

void Bootstrap::say_network_failed(const std::string& why) {
  constexpr size_t kMost = 1000;  // A message's name is short.
  send_to_others({.kind = MessageKind::network_failed,
                  .generation = generation(),
                  .what = why.substr(0, kMost)});
}

void Bootstrap::report_timeout(uint64_t object, uint32_t rank) {
  timeout_reports_.note(object, this->rank(), rank);
  send_to_others({.kind = MessageKind::timeout_report,
                  .generation = generation(),
                  .sequence = object,
                  .slots = {membership_.slots[rank]}});
}

void Bootstrap::send_to_others(const Message& message) {
  for (const uint32_t peer : others()) mesh_->send(membership_.slots[peer], message);
}

std::optional<uint32_t> Bootstrap::rank_at(uint32_t slot) const {
  const auto& slots = membership_.slots;
  const auto at = std::ranges::find(slots, slot);
  if (at == slots.end()) return std::nullopt;  // Not of this world.
  return static_cast<uint32_t>(at - slots.begin());
}

std::vector<uint32_t> Bootstrap::others() const {
  std::vector<uint32_t> peers;
  for (uint32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank() && present(peer)) peers.push_back(peer);
  }
  return peers;
}

void Bootstrap::await_each(const std::string& what, TimePoint until,
                           const std::function<bool(uint32_t rank)>& arrived) {
  const auto has_arrived = [&](uint32_t peer) {
    if (arrived(peer)) return true;
    abort_flag_.check_left_out({.rank = peer, .phase = what});
    return false;
  };
  await(others(), what, until, has_arrived,
        [this](uint32_t peer) { return abort_flag_.has_gone_on(peer); });
}

void Bootstrap::note_whether_gone_on(uint32_t peer) {
  // A world that has all ranks of this one may have been asked for before the loss: both are used.
  const std::vector<uint32_t>& slots = asked_by_.at(peer);
  const bool lacks_one = std::ranges::any_of(abort_flag_.gone_ranks(), [&](uint32_t gone) {
    return std::ranges::count(slots, membership_.slots[gone]) == 0;
  });
  if (lacks_one) abort_flag_.gone_on(peer);
}

void Bootstrap::await(const std::vector<uint32_t>& ranks, const std::string& what, TimePoint until,
                      const std::function<bool(uint32_t rank)>& arrived,
                      const std::function<bool(uint32_t rank)>& given_up) {
  const TimePoint start = accelerator_.now();
  std::vector<uint32_t> missing = ranks;
  const auto facts = [&](uint32_t awaited) {
    const std::chrono::duration<double> waited = accelerator_.now() - start;
    return WaitFacts{.rank = awaited,
                     .phase = what,
                     .expected = ranks.size(),
                     .seen = ranks.size() - missing.size(),
                     .waited_s = waited.count()};
  };
  const auto throw_lost = [&](uint32_t rank) {
    WaitFacts lost = facts(rank);
    abort_flag_.check_absence(lost);
    if (abort_flag_.has_left(rank)) lost.phase = after_goodbye(lost.phase);
    throw PeerLost(lost);
  };
  const auto everybody_came = [&] {
    if (abort_flag_.cancelled()) throw Cancelled(what);
    if (check_) check_();
    // In this order: what a peer sent before it went has arrived before it is marked as gone.
    // Not by the mailbox: another process may hold the slot meanwhile.
    std::vector<uint32_t> ended;
    if (given_up) std::ranges::copy_if(missing, std::back_inserter(ended), given_up);
    const std::vector<uint32_t> gone = abort_flag_.gone_ranks();
    std::erase_if(missing, arrived);
    const auto is_missing = [&](uint32_t peer) { return std::ranges::count(missing, peer) != 0; };
    for (const uint32_t peer : gone)
      if (is_missing(peer)) throw_lost(peer);
    const auto given_up_on = std::ranges::find_if(ended, is_missing);
    if (given_up_on != ended.end()) throw_lost(gone.empty() ? *given_up_on : gone.front());
    return missing.empty();
  };
  if (!everybody_came() && !accelerator_.wait_until(until, everybody_came)) {
    const WaitFacts late = facts(missing.front());
    abort_flag_.check_absence(late);
    throw PeerTimeout(late);
  }
}

}  // namespace tokenyard
