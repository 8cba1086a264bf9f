#include "tokenyard/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/runtime/group_state.hpp"
#include "control/memory_store.hpp"

namespace tokenyard {

using collectives::Entrance;
using collectives::Runtime;
using collectives::View;

namespace {

std::unique_ptr<Collectives> make(const CollectivesOptions& options, Entrance entrance) {
  return std::make_unique<Collectives>(std::make_unique<Collectives::Impl>(
      Collectives::Impl{std::make_shared<Runtime>(options, entrance)}));
}

std::vector<uint32_t> slots_of(const View& view) {
  std::vector<uint32_t> slots;
  for (const collectives::Member& member : view.members) slots.push_back(member.slot);
  return slots;
}

}  // namespace

std::unique_ptr<Collectives> Collectives::connect(const CollectivesOptions& options) {
  return make(options, Entrance::found);
}

std::unique_ptr<Collectives> Collectives::join(const CollectivesOptions& options) {
  return make(options, Entrance::join);
}

std::unique_ptr<Collectives> Collectives::alone(const CollectivesOptions& options) {
  CollectivesOptions unseen = options;
  unseen.own_store = std::make_shared<control::MemoryStore>();
  return make(unseen, Entrance::alone);
}

Collectives::Collectives(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Collectives::~Collectives() {
  try {
    impl_->runtime->close();
  } catch (const std::exception&) {
    // A destructor cannot report an error; sockets and threads are closed all the same.
  }
}

uint32_t Collectives::rank() const {
  return impl_->runtime->options.rank;
}

uint32_t Collectives::size() const {
  return impl_->runtime->engine().view().slots;
}

Group Collectives::world() const {
  return Group(std::make_shared<Group::State>(
      impl_->runtime, collectives::GroupIdentity{.id = 0, .name = "world", .self = rank()},
      impl_->runtime->options.timeout));
}

Group Collectives::group(std::span<const uint32_t> ranks, const std::string& name,
                         std::optional<std::chrono::nanoseconds> timeout) {
  const uint32_t slots = size();
  std::vector<uint32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw InvalidArgument("ranks", "distinct ranks", "a duplicate");
  }
  if (!sorted.empty() && sorted.back() >= slots) {
    throw InvalidArgument("ranks", fmt::format("ranks of {}", slots),
                          fmt::to_string(sorted.back()));
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  if (self == ranks.end()) {
    throw InvalidArgument("ranks", fmt::format("a list with this rank, {}", rank()), "only others");
  }
  collectives::GroupIdentity identity = {.name = name,
                                         .slots = {ranks.begin(), ranks.end()},
                                         .self = static_cast<uint32_t>(self - ranks.begin())};
  const std::shared_ptr<Runtime>& runtime = impl_->runtime;
  const std::chrono::nanoseconds limit = timeout.value_or(runtime->options.timeout);
  collectives::Engine& engine = runtime->engine();
  const auto founding = engine.found_group(identity, limit);
  runtime->progress_thread().launched();
  const auto made = [&] {
    engine.end_founding(founding);
    identity.id = founding->id;
  };
  try {
    // A newcomer to a group that is already in use has missed the founding barrier.
    if (founding->barrier) {
      Work(std::make_shared<Work::State>(Work::State{runtime, founding->barrier})).wait();
    }
  } catch (...) {
    made();
    throw;
  }
  made();
  return Group(std::make_shared<Group::State>(runtime, identity, limit));
}

std::vector<uint32_t> Collectives::active_ranks() const {
  return slots_of(impl_->runtime->engine().view());
}

uint64_t Collectives::epoch() const {
  return impl_->runtime->engine().view().epoch;
}

std::shared_ptr<void> Collectives::on_change(std::function<void()> call) {
  return impl_->runtime->on_change(std::move(call));
}

std::vector<uint32_t> Collectives::shrink() {
  Runtime& runtime = *impl_->runtime;
  const auto call = runtime.recovery().shrink();
  runtime.await(*call);
  return slots_of(runtime.engine().recovered());
}

void Collectives::replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout) {
  Runtime& runtime = *impl_->runtime;
  const auto call = runtime.recovery().replace(rank);
  runtime.await(*call, timeout);
}

void Collectives::grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout) {
  Runtime& runtime = *impl_->runtime;
  const uint32_t most = std::max(runtime.options.size, runtime.options.size_max);
  const auto call = runtime.recovery().grow(ranks, most);
  runtime.await(*call, timeout);
}

std::vector<uint32_t> Collectives::recover(bool wait_for_replacements,
                                           std::optional<std::chrono::nanoseconds> timeout) {
  Runtime& runtime = *impl_->runtime;
  const auto call = runtime.recovery().recover(wait_for_replacements);
  runtime.await(*call, timeout);
  return active_ranks();
}

void Collectives::evict(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout) {
  Runtime& runtime = *impl_->runtime;
  if (rank == runtime.options.rank) {
    throw InvalidArgument("rank", "another rank; call leave to remove this one",
                          fmt::to_string(rank));
  }
  const auto call = runtime.recovery().evict(rank);
  runtime.await(*call, timeout);
}

std::vector<uint32_t> Collectives::waiting_ranks() const {
  std::vector<uint32_t> ranks;
  for (const collectives::Member& member : impl_->runtime->control().waiting()) {
    if (ranks.empty() || ranks.back() != member.slot) ranks.push_back(member.slot);
  }
  return ranks;
}

void Collectives::leave() {
  // The other ranks' threads receive small messages whatever their programs do meanwhile.
  impl_->runtime->leave(
      std::min<std::chrono::nanoseconds>(impl_->runtime->options.timeout, std::chrono::seconds(5)),
      "after leave");
}

void Collectives::cancel() {
  impl_->runtime->engine().cancel(std::make_exception_ptr(Cancelled("cancel")));
}

CollectivesCounters Collectives::counters() const {
  return impl_->runtime->counters();
}

}  // namespace tokenyard
