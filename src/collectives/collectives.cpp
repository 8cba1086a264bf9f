#include "tokenyard/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "collectives/group_state.hpp"

namespace tokenyard {

using collectives::Entrance;
using collectives::Machine;
using collectives::View;

namespace {

std::unique_ptr<Collectives> make(const CollectivesOptions& options, Entrance entrance) {
  return std::make_unique<Collectives>(std::make_unique<Collectives::Parts>(
      Collectives::Parts{std::make_shared<Machine>(options, entrance)}));
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

Collectives::Collectives(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Collectives::~Collectives() {
  try {
    parts_->machine->close();
  } catch (const std::exception&) {
    // A destructor has nobody to tell; sockets and threads are gone all the same.
  }
}

uint32_t Collectives::rank() const {
  return parts_->machine->options.rank;
}

uint32_t Collectives::size() const {
  return parts_->machine->engine().view().slots;
}

Group Collectives::world() const {
  return Group(
      std::make_shared<Group::State>(Group::State{.machine = parts_->machine,
                                                  .id = 0,
                                                  .name = "world",
                                                  .rank = rank(),
                                                  .timeout = parts_->machine->options.timeout}));
}

Group Collectives::group(std::span<const uint32_t> ranks, const std::string& name,
                         std::optional<std::chrono::nanoseconds> timeout) {
  const uint32_t slots = size();
  std::vector<uint32_t> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw InvalidArgument("ranks", "each once", "one twice");
  }
  if (!sorted.empty() && sorted.back() >= slots) {
    throw InvalidArgument("ranks", fmt::format("ranks of {}", slots),
                          fmt::to_string(sorted.back()));
  }
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  if (self == ranks.end()) {
    throw InvalidArgument("ranks", fmt::format("this one, {}, among them", rank()), "others only");
  }
  collectives::GroupIdentity identity = {.name = name,
                                         .slots = {ranks.begin(), ranks.end()},
                                         .self = static_cast<uint32_t>(self - ranks.begin())};
  identity.id = collectives::Engine::id_of(name, identity.slots);
  Machine& machine = *parts_->machine;
  const bool begun_before = machine.engine().add_group(identity);
  Group group(std::make_shared<Group::State>(
      Group::State{.machine = parts_->machine,
                   .id = identity.id,
                   .name = name,
                   .rank = identity.self,
                   .timeout = timeout.value_or(machine.options.timeout)}));
  // Its first operation; a newcomer to a group that works already has missed it.
  if (!begun_before) group.barrier().wait();
  return group;
}

std::vector<uint32_t> Collectives::active_ranks() const {
  return slots_of(parts_->machine->engine().view());
}

uint64_t Collectives::epoch() const {
  return parts_->machine->engine().view().epoch;
}

std::shared_ptr<void> Collectives::on_change(std::function<void()> call) {
  return parts_->machine->on_change(std::move(call));
}

std::vector<uint32_t> Collectives::shrink() {
  return slots_of(parts_->machine->await_mending());
}

void Collectives::replace(uint32_t rank, std::optional<std::chrono::nanoseconds> timeout) {
  Machine& machine = *parts_->machine;
  collectives::Engine& engine = machine.engine();
  if (rank >= size()) {
    throw InvalidArgument("rank", fmt::format("a rank of {}", size()), fmt::to_string(rank));
  }
  const auto known = machine.known_incarnations();
  const auto replaced = [&] {
    const auto member = engine.view().at(rank);
    const auto before = known.find(rank);
    return member && !engine.frozen() &&
           (before == known.end() || before->second != member->incarnation);
  };
  if (!replaced()) machine.control().admit({rank});
  machine.await(
      replaced,
      [&] { return WaitFacts{.rank = rank, .phase = fmt::format("replace: a new rank {}", rank)}; },
      timeout.value_or(machine.options.timeout));
  machine.make_whole(engine.came_in(rank));
}

void Collectives::grow(uint32_t ranks, std::optional<std::chrono::nanoseconds> timeout) {
  Machine& machine = *parts_->machine;
  collectives::Engine& engine = machine.engine();
  const uint32_t before = machine.known_slots();
  const uint32_t most = std::max(machine.options.size, machine.options.size_max);
  if (ranks == 0 || before + ranks > most) {
    throw InvalidArgument("ranks", fmt::format("from 1 to {}", most - before),
                          fmt::to_string(ranks));
  }
  std::vector<uint32_t> slots(ranks);
  std::iota(slots.begin(), slots.end(), before);
  const auto grown = [&] {
    const View view = engine.view();
    return !engine.frozen() && std::all_of(slots.begin(), slots.end(), [&](uint32_t slot) {
      return view.at(slot).has_value();
    });
  };
  if (!grown()) machine.control().admit(slots);
  machine.await(
      grown,
      [&] {
        return WaitFacts{.rank = slots.front(), .phase = fmt::format("grow: {} new ranks", ranks)};
      },
      timeout.value_or(machine.options.timeout));
  collectives::Epoch complete = 0;
  for (const uint32_t slot : slots) complete = std::max(complete, engine.came_in(slot));
  machine.make_whole(complete);
}

void Collectives::leave() {
  // Small messages are taken by the others' threads, whatever their programs do meanwhile.
  parts_->machine->leave(
      std::min<std::chrono::nanoseconds>(parts_->machine->options.timeout, std::chrono::seconds(5)),
      "after leave");
}

void Collectives::cancel() {
  parts_->machine->engine().cancel(std::make_exception_ptr(Cancelled("cancel")));
}

CollectivesCounters Collectives::counters() const {
  return parts_->machine->counters();
}

}  // namespace tokenyard
