#include "collectives/engine/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/engine_turn.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

/// Longer than two heartbeats of the rank that asks for attention.
constexpr Instant attentive_for = std::chrono::milliseconds(250);

/// In a new epoch, a sender whose acknowledgement was lost with the old one asks again. The
/// receiver, which has acknowledged already, waits for nothing; it looks at such questions for this
/// long.
constexpr Instant asked_again_for = std::chrono::seconds(2);

}  // namespace

Engine::Engine(std::shared_ptr<Transport> transport, EngineOptions options, Clock clock)
    : clock_(std::move(clock)), transport_(std::move(transport)) {
  context_.transport = transport_.get();
  context_.self = options.self;
  context_.on_failure = options.on_failure;
  context_.places = options.places;
  context_.chunk_bytes = options.chunk_bytes;
  context_.mutant = options.mutant;
}

void Engine::use(control::MembershipControl& control) {
  const std::lock_guard lock(mutex_);
  context_.control = &control;
}

GroupIdentity Engine::identity(GroupId group) const {
  const std::lock_guard lock(mutex_);
  return queue(group).identity();
}

std::shared_ptr<Operation> Engine::start(GroupId group, Call call,
                                         std::chrono::nanoseconds timeout) {
  const Instant now = clock_();
  auto operation = std::make_shared<Operation>(std::move(call), timeout, now);
  const Turn turn(*this, true);
  queue(group).add(operation);
  queue(group).poll(now);
  return operation;
}

std::shared_ptr<Outcome> Engine::send(GroupId group, ConstArray array, uint32_t to, uint64_t tag,
                                      std::chrono::nanoseconds timeout, size_t eager_limit) {
  const Turn turn(*this, true);
  queue(group);
  return messages_.at(group).send(array, to, tag, clock_(), timeout, eager_limit);
}

std::shared_ptr<Outcome> Engine::receive(GroupId group, Array array, std::optional<uint32_t> from,
                                         uint64_t tag, std::chrono::nanoseconds timeout) {
  const Instant now = clock_();
  const Turn turn(*this, true);
  queue(group);
  PointToPoint& messages = messages_.at(group);
  auto outcome = messages.receive(array, from, tag, now, timeout);
  messages.poll(now, PointToPoint::Attention::nobody);
  return outcome;
}

PointToPoint::Attention Engine::attention() const {
  const Instant now = clock_();
  if (now < attentive_until_) return PointToPoint::Attention::everybody;
  return now < asked_again_until_ ? PointToPoint::Attention::acquainted
                                  : PointToPoint::Attention::nobody;
}

bool Engine::poll_queues() {
  const Instant now = clock_();
  bool moved = false;
  for (auto& [id, queue] : queues_) moved = queue.poll(now) || moved;
  const PointToPoint::Attention attended = attention();
  for (auto& [id, messages] : messages_) {
    if (attended != PointToPoint::Attention::nobody || !messages.idle())
      moved = messages.poll(now, attended) || moved;
  }
  if (!closing_.empty()) forget_groups();
  poll_farewell();
  return moved;
}

bool Engine::poll(bool with_transport) {
  const Turn turn(*this, true);
  if (with_transport && transport_) transport_->poll();
  return poll_queues();
}

bool Engine::prepare_to_sleep() {
  const Turn turn(*this, true);
  if (transport_) transport_->prepare_to_sleep();
  return poll_queues() || !context_.finished.empty();
}

bool Engine::busy() const {
  const std::lock_guard lock(mutex_);
  const Instant now = clock_();
  return attention() != PointToPoint::Attention::nobody ||
         std::any_of(queues_.begin(), queues_.end(),
                     [&](const auto& entry) { return !entry.second.idle(now); }) ||
         std::any_of(messages_.begin(), messages_.end(),
                     [](const auto& entry) { return !entry.second.idle(); });
}

std::optional<Instant> Engine::next_deadline() const {
  const std::lock_guard lock(mutex_);
  std::optional<Instant> next;
  const auto look = [&](const std::optional<Instant>& deadline) {
    if (deadline && (!next || *deadline < *next)) next = deadline;
  };
  for (const auto& [id, queue] : queues_) look(queue.next_deadline());
  for (const auto& [id, messages] : messages_) look(messages.next_deadline());
  return next;
}

View Engine::view() const {
  const std::lock_guard lock(mutex_);
  return context_.view;
}

bool Engine::frozen() const {
  const std::lock_guard lock(mutex_);
  return context_.frozen;
}

void Engine::repair(Epoch last) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, queue] : queues_) queue.repair(last);
}

void Engine::repair_loss(Slot slot) {
  const Epoch came = came_in(slot);
  const std::lock_guard lock(mutex_);
  for (auto& [id, queue] : queues_) queue.repair_loss(slot, came);
}

// Failures of closed groups do not count.
bool Engine::failed() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& entry) {
    return entry.second.broken() && entry.second.stage() == GroupStage::open;
  });
}

bool Engine::stopped() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& entry) {
    return entry.second.stopped() && entry.second.stage() == GroupStage::open;
  });
}

bool Engine::refilled(Slot slot) const {
  const std::lock_guard lock(mutex_);
  return lost_before_.contains(slot) && context_.view.at(slot).has_value();
}

bool Engine::was_filled(Slot slot) const {
  return came_in(slot) > 0;
}

uint32_t Engine::slots_found() const {
  const std::lock_guard lock(mutex_);
  return slots_found_;
}

View Engine::recovered() const {
  const std::lock_guard lock(mutex_);
  return recovered_;
}

Epoch Engine::came_in(Slot slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = came_in_.find(slot);
  return found != came_in_.end() ? found->second : 0;
}

void Engine::announce() {
  const Turn turn(*this);
}

void Engine::cancel(const std::exception_ptr& why) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = why;
    for (auto& [id, queue] : queues_) queue.fail(why);
    for (auto& [id, messages] : messages_) messages.fail(why);
    forget_groups();
    poll_farewell();
  }
  on_news_();
}

std::shared_ptr<Outcome> Engine::begin_to_leave(const std::exception_ptr& why) {
  const Turn turn(*this);
  farewell_ = std::make_shared<Outcome>();
  leaving_ = why;
  for (auto& [id, queue] : queues_) queue.fail(why);
  for (auto& [id, messages] : messages_) messages.begin_to_leave(why);
  poll_farewell();
  return farewell_;
}

void Engine::poll_farewell() {
  if (!farewell_ || farewell_->done()) return;
  const bool drained = std::all_of(messages_.begin(), messages_.end(),
                                   [](const auto& entry) { return entry.second.drained(); });
  if (drained) context_.finish(farewell_, nullptr);
}

std::optional<Slot> Engine::unreceived_by() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, messages] : messages_) {
    if (const auto slot = messages.unreceived_by()) return slot;
  }
  return std::nullopt;
}

void Engine::attend() {
  {
    const std::lock_guard lock(mutex_);
    attentive_until_ = clock_() + attentive_for;
  }
  on_news_();
}

void Engine::close() {
  const std::lock_guard lock(mutex_);
  if (!ended_) throw InternalError("an engine was closed before it was cancelled");
  context_.transport = nullptr;
  transport_.reset();
}

uint32_t Engine::neighbours() const {
  const std::lock_guard lock(mutex_);
  uint32_t neighbours = 0;
  for (const Member& member : context_.view.members) {
    const bool here =
        transport_ && transport_->host_of(member.slot) == transport_->host_of(context_.self);
    neighbours += here ? 1 : 0;
  }
  return neighbours;
}

std::exception_ptr Engine::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::optional<QuorumFacts> Engine::missing_quorum() const {
  const std::lock_guard lock(mutex_);
  return context_.quorum_missing;
}

CollectivesCounters Engine::counters() const {
  const std::lock_guard lock(mutex_);
  CollectivesCounters counters = context_.counters;
  for (const auto& [id, queue] : queues_) counters.bytes_sent += queue.bytes_sent();
  for (const auto& [id, messages] : messages_) counters.bytes_sent += messages.bytes_sent();
  return counters;
}

std::string Engine::choice(GroupId group, OperationKind kind, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (ended_) std::rethrow_exception(ended_);  // the transport may be gone
  return queue(group).choice(kind, bytes);
}

std::vector<GroupProgress> Engine::freeze(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  if (epoch < context_.view.epoch) {
    throw InternalError(
        fmt::format("asked to freeze epoch {} in epoch {}", epoch, context_.view.epoch));
  }
  // The last frames of a rank that left in good order may be here already.
  if (!context_.frozen && !ended_) poll_queues();
  context_.frozen = context_.mutant != EngineMutant::commits_while_frozen;
  std::vector<GroupProgress> progress;
  for (const auto& [id, queue] : queues_) {
    std::vector<Slot> slots = queue.identity().slots;
    std::sort(slots.begin(), slots.end());
    progress.push_back({.group = id,
                        .slots = std::move(slots),
                        .committed = queue.committed(),
                        .begun = queue.begun(),
                        .label = queue.identity().label,
                        .stage = queue.stage()});
  }
  return progress;
}

void Engine::install(const Verdict& verdict, const Contacts& contacts) {
  {
    const std::lock_guard lock(mutex_);
    const Instant now = clock_();
    note_places(verdict);
    context_.view = verdict.next;
    if (verdict.recovers) recovered_ = verdict.next;
    context_.quorum_missing.reset();
    ++context_.counters.epochs;
    if (!transport_) return;
    transport_->begin_epoch(verdict.next, contacts);
    published_.clear();
    for (const GroupProgress& group : verdict.groups) published_[group.group] = group;
    context_.founded.clear();
    rename_foundings();
    for (auto& [id, queue] : queues_) {
      const auto said = published_.find(id);
      if (id == 0) queue.extend(verdict.next.slots);
      queue.install(verdict, said != published_.end() ? &said->second : nullptr, now);
    }
    context_.founded.clear();  // the groups that this verdict completes belong to the old epoch
    context_.frozen = false;
    for (auto& [id, messages] : messages_) {
      if (id == 0) messages.extend(verdict.next.slots);
      messages.install(verdict, now);
      if (messages.has_acquaintances()) asked_again_until_ = now + asked_again_for;
    }
  }
  on_news_();
}

void Engine::note_places(const Verdict& verdict) {
  const View& next = verdict.next;
  if (context_.view.epoch == 0) {
    // This process has not seen earlier losses: to it, every slot may have been lost and refilled.
    const bool founder = next.epoch == 1;
    for (Slot slot = 0; slot < next.slots && !founder; ++slot) lost_before_.insert(slot);
    slots_found_ = founder ? next.slots : context_.self + 1;
    for (const GroupProgress& group : verdict.groups) {
      if (group.group != 0) continue;
      slots_found_ = std::max(slots_found_, static_cast<uint32_t>(group.slots.size()));
    }
  }
  lost_before_.insert(verdict.lost.begin(), verdict.lost.end());
  for (const Member& member : next.members) {
    if (!context_.view.contains(member)) came_in_[member.slot] = next.epoch;
  }
}

void Engine::fenced(Epoch epoch, const std::string& why) {
  if (context_.mutant == EngineMutant::fence_ignored) return;
  {
    // This process no longer knows the members, except that it is none.
    const std::lock_guard lock(mutex_);
    context_.view.epoch = std::max(context_.view.epoch, epoch);
    context_.view.members.clear();
  }
  cancel(std::make_exception_ptr(tokenyard::Fenced(epoch, why)));
}

void Engine::quorum_missing(const std::vector<Slot>& answering, uint32_t needed) {
  {
    const std::lock_guard lock(mutex_);
    context_.quorum_missing = QuorumFacts{answering, needed};
  }
  on_news_();
}

}  // namespace tokenyard::collectives
