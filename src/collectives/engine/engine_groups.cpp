// How an engine gets groups and releases them.
//
// A group has a label, the hash of its name and slots, and an id, by which channels and verdicts
// know it: a hash of the label, the epoch in which it was founded, and how many groups of that
// label were founded before in this epoch. All its ranks compute the same id without a message. A
// barrier of all ranks founds the group, on all of them or on none; until it is done, the founding
// restarts in each epoch, under that epoch's id. So a name can be used again, even by other ranks,
// and nothing of an old group passes for a new one's.
//
// A newcomer does not found groups that the others have: the verdict that admits it lists all ids.
//
// Invariant: foundings of one label follow one another, because a process has at most one open
// group per label; so all its ranks count alike. Counts restart with each epoch, for members and
// newcomers alike.

#include <fmt/format.h>

#include <algorithm>

#include "collectives/engine/engine_turn.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::collectives {

namespace {

uint64_t label_of(const std::string& name, const std::vector<Slot>& slots) {
  std::vector<uint64_t> parts(name.begin(), name.end());
  parts.push_back(~uint64_t{0});
  parts.insert(parts.end(), slots.begin(), slots.end());
  return fingerprint(parts);
}

}  // namespace

GroupId Engine::founding_id(uint64_t label) const {
  const auto before = context_.founded.find(label);
  const uint64_t count = before != context_.founded.end() ? before->second : 0;
  const bool counted = context_.mutant != EngineMutant::foundings_not_counted;
  const uint64_t parts[] = {label, context_.view.epoch, counted ? count : 0};
  return fingerprint(parts);
}

void Engine::insert_group(const GroupIdentity& identity, Sequence committed) {
  const bool added = queues_.try_emplace(identity.id, context_, identity, committed).second;
  if (!added) throw InvalidArgument("name", "a name that no open group has", identity.name);
  messages_.try_emplace(identity.id, context_, identity);
  if (const std::exception_ptr why = ended_ ? ended_ : leaving_) {
    queues_.at(identity.id).fail(why);
    messages_.at(identity.id).fail(why);
  }
}

bool Engine::add_group(const GroupIdentity& identity) {
  const std::lock_guard lock(mutex_);
  const auto before = published_.find(identity.id);
  const Sequence committed = before != published_.end() ? before->second.committed : 0;
  insert_group(identity, committed);
  return committed > 0;
}

std::shared_ptr<Founding> Engine::found_group(GroupIdentity identity,
                                              std::chrono::nanoseconds timeout) {
  const Instant now = clock_();
  const Turn turn(*this, true);
  if (const std::exception_ptr why = ended_ ? ended_ : leaving_) std::rethrow_exception(why);
  identity.label = label_of(identity.name, identity.slots);
  const auto is_open = [&](const auto& entry) {
    return entry.second.identity().label == identity.label &&
           entry.second.stage() == GroupStage::open;
  };
  const auto begun = foundings_.find(identity.label);
  auto founding = begun != foundings_.end() ? begun->second : nullptr;
  if (founding ? founding->awaited : std::any_of(queues_.begin(), queues_.end(), is_open)) {
    throw InvalidArgument("name", "a name that no open group of these ranks has", identity.name);
  }
  if (!founding) {
    const auto had = std::find_if(published_.begin(), published_.end(), [&](const auto& published) {
      return published.second.label == identity.label && published.second.committed > 0 &&
             published.second.stage == GroupStage::open;
    });
    identity.id = had != published_.end() ? had->first : founding_id(identity.label);
    insert_group(identity, had != published_.end() ? had->second.committed : 0);
    founding = foundings_.emplace(identity.label, std::make_shared<Founding>()).first->second;
    founding->id = identity.id;
  }
  founding->awaited = true;
  OperationQueue& queue = queues_.at(founding->id);
  // An interrupted founding goes on; a failed one is repeated by all its ranks.
  const bool failed = founding->barrier && founding->barrier->error();
  if (queue.committed() == 0 && (!founding->barrier || failed)) {
    founding->barrier = std::make_shared<Operation>(
        Call{.signature = {.kind = OperationKind::barrier}}, timeout, now);
    queue.add(founding->barrier);
    queue.poll(now);
  } else if (failed) {
    founding->barrier.reset();  // the others have founded it, as a verdict has told since
  }
  return founding;
}

void Engine::end_founding(const std::shared_ptr<Founding>& founding) {
  const std::lock_guard lock(mutex_);
  founding->awaited = false;
  const auto found = queues_.find(founding->id);
  if (found == queues_.end()) return;
  const bool failed = founding->barrier && founding->barrier->error();
  const bool made = found->second.committed() > 0 && !failed;
  if (made || ended_) foundings_.erase(found->second.identity().label);
}

/// Renames foundings: a group not founded in the epoch that ends is founded in the next one.
void Engine::rename_foundings() {
  for (auto& [label, founding] : foundings_) {
    const auto published = published_.find(founding->id);
    const bool done = (published != published_.end() && published->second.committed > 0) ||
                      queues_.at(founding->id).committed() > 0;
    if (done) continue;
    auto queue = queues_.extract(founding->id);
    auto messages = messages_.extract(founding->id);
    founding->id = queue.key() = messages.key() = founding_id(label);
    queue.mapped().rename(founding->id);
    messages.mapped().rename(founding->id);
    queues_.insert(std::move(queue));
    messages_.insert(std::move(messages));
  }
}

void Engine::close_group(GroupId group) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = queues_.find(group);
    if (found == queues_.end() || found->second.identity().label == 0) return;
    found->second.close(clock_());
    published_.erase(group);
    closing_.insert(group);
    if (ended_) forget_groups();
  }
  on_news_();
}

bool Engine::closing() const {
  const std::lock_guard lock(mutex_);
  return !closing_.empty();
}

size_t Engine::groups() const {
  const std::lock_guard lock(mutex_);
  return queues_.size();
}

void Engine::forget_groups() {
  for (auto group = closing_.begin(); group != closing_.end();) {
    const OperationQueue& queue = queues_.at(*group);
    if (!queue.over()) {
      ++group;
      continue;
    }
    PointToPoint& messages = messages_.at(*group);
    messages.fail(std::make_exception_ptr(
        Cancelled(fmt::format("the end of group \"{}\"", queue.identity().name))));
    context_.counters.bytes_sent += queue.bytes_sent() + messages.bytes_sent();
    if (transport_) transport_->release(*group);
    messages_.erase(*group);
    queues_.erase(*group);
    group = closing_.erase(group);
  }
}

OperationQueue& Engine::queue(GroupId group) {
  return const_cast<OperationQueue&>(std::as_const(*this).queue(group));
}

const OperationQueue& Engine::queue(GroupId group) const {
  const auto found = queues_.find(group);
  if (found == queues_.end()) throw InvalidArgument("group", "an open group", "a closed one");
  if (found->second.stage() != GroupStage::open) {
    throw InvalidArgument("group", "an open group",
                          fmt::format("\"{}\", which is closed", found->second.identity().name));
  }
  return found->second;
}

}  // namespace tokenyard::collectives
