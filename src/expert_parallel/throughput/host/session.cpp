#include "expert_parallel/throughput/host/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/throughput/host/options.hpp"
#include "fabric/finished_calls.hpp"
#include "fabric/world_access.hpp"

namespace tokenyard::throughput {

namespace {

/// Further than calls of one session count, so that epochs of different ranks never meet.
constexpr uint32_t kEpochsApart = 1u << 20;

std::optional<Legacy> legacy_of(const Session* before, uint64_t finished,
                                const ExpertParallelOptions& options, uint32_t ranks) {
  if (before == nullptr) return std::nullopt;
  return Legacy{.finished = finished,
                .map = before->experts.carried_to(places_of(options, ranks), ranks)};
}

/// Adds totals to others, of as many experts or ranks or more.
template <class Number>
void add(std::vector<Number>& to, const std::vector<Number>& totals) {
  if (to.size() < totals.size()) return;
  for (size_t i = 0; i < totals.size(); ++i) to[i] += totals[i];
}

}  // namespace

Session::Session(std::shared_ptr<World> of, const ExpertParallelOptions& options,
                 std::shared_ptr<const void> exchange, const Session* before)
    : before_(before == nullptr ? ExpertParallel::Metrics{} : before->metrics()),
      choices_before_(before == nullptr ? std::vector<uint64_t>(options.experts)
                                        : before->choices_by_expert()),
      finished_here_(before == nullptr ? 0 : before->finished()),
      world(std::move(of)),
      agreed(Succession::agree(*world, legacy_of(before, finished_here_, options, world->size()))),
      context(world, options, std::move(exchange)),
      counted_(context.setup.local_experts()) {
  experts.set(agreed.map);
}

std::optional<OperationAborted> Session::undone(const Session& before) const {
  if (finished_here_ <= agreed.finished) return std::nullopt;
  const uint64_t number = agreed.finished + 1;
  const char* const name = before.captured()
                               ? "a call that a CUDA graph may have made"
                               : before.context.calls.name_of(number - before.agreed.finished);
  return OperationAborted(
      fmt::format("ExpertParallel.{}, which has returned here but not on all ranks: call", name),
      number, membership_epoch_of(*before.world),
      lost_between(*before.world, *world, agreed.newcomers));
}

void Session::set_experts(std::span<const int32_t> expert_at) {
  const std::lock_guard lock(moving_);
  choices_before_ = choices_by_expert();
  counted_ = context.observation.load().tokens_per_expert;
  experts.set(expert_at);
  context.calls.map_was_set();
}

void Session::retire() {
  if (!captured()) return;
  context.health->cell.clear();
  // Every rank counts from another number on, so no word of a replay is ever awaited; and a wait
  // ends at once.
  const uint32_t epoch = workspace().epoch + (world->rank() + 1) * kEpochsApart;
  if (context.rails) context.rails->retire();
  Accelerator& accelerator = context.setup.accelerator;
  accelerator.copy(&context.window.workspace()->epoch, &epoch, sizeof(epoch), Stream{});
  context.setup.await_stream(Stream{}, "the end of what was captured");
  world->cancel();
}

bool Session::take_replay() {
  if (!captured() || !context.health->cell.failed()) return false;
  context.health->cell.clear();
  context.setup.await_stream(Stream{}, "the error of a replay");
  return true;
}

Workspace Session::workspace() const {
  Workspace words{};
  context.setup.accelerator.copy(&words, context.window.workspace(), sizeof(words), Stream{});
  context.setup.await_stream(Stream{}, "its epoch");
  return words;
}

/// A call that fails has counted itself once all its blocks have begun; none begins after it. A
/// failure may also be that of a kernel between calls.
uint64_t Session::finished_kernels() const {
  const Workspace words = workspace();
  const uint32_t begun = words.epoch - epoch_before(*world);
  if (!context.health->cell.failed() || begun == 0 || words.readers != 0) return begun;
  const bool groups = context.health->cell.report().phase == expert_major::kTooFewPlaces;
  const bool is_between = groups && begun <= context.calls.kernels() &&
                          context.calls.last_kernel() != CallKind::dispatch_by_expert;
  return is_between ? begun : begun - 1;
}

uint64_t Session::finished() const {
  const uint64_t kernels = finished_kernels();
  if (!captured()) return agreed.finished + context.calls.finished(kernels);
  // The host does not know of the calls of a graph.
  const bool interrupted = context.health->interrupted && !context.health->cell.failed();
  return agreed.finished + context.calls.maps_set() +
         (interrupted && kernels != 0 ? kernels - 1 : kernels);
}

std::vector<uint64_t> Session::choices_by_expert() const {
  std::vector<uint64_t> choices = choices_before_;
  const std::vector<uint64_t> now = context.observation.load().tokens_per_expert;
  const std::vector<int32_t> held = experts.held_by(world->rank());
  for (size_t place = 0; place < held.size(); ++place)
    if (held[place] >= 0) choices[static_cast<size_t>(held[place])] += now[place] - counted_[place];
  return choices;
}

/// Counts from before the map was set belong to an expert, and are shown at its first place.
void Session::show_by_expert(std::vector<uint64_t>& choices) const {
  const std::lock_guard lock(moving_);
  const std::vector<int32_t> held = experts.held_by(world->rank());
  const std::vector<uint64_t> now = context.observation.load().tokens_per_expert;
  for (size_t place = 0; place < held.size(); ++place) {
    choices[place] = 0;
    if (held[place] < 0) continue;
    const bool is_first = std::find(held.begin(), held.end(), held[place]) ==
                          held.begin() + static_cast<std::ptrdiff_t>(place);
    choices[place] = now[place] - counted_[place];
    if (is_first) choices[place] += choices_before_[static_cast<size_t>(held[place])];
  }
}

ExpertParallel::Metrics Session::metrics() const {
  ExpertParallel::Metrics metrics = context.observation.metrics();
  metrics.unplaced_choices = experts.lost_choices_total() + before_.unplaced_choices;
  metrics.dispatch_calls += before_.dispatch_calls;
  metrics.combine_calls += before_.combine_calls;
  metrics.uncounted_calls += before_.uncounted_calls;
  metrics.dispatched_tokens += before_.dispatched_tokens;
  add(metrics.received_rows_by_peer, before_.received_rows_by_peer);
  add(metrics.received_bytes_by_peer, before_.received_bytes_by_peer);
  add(metrics.returned_rows_by_peer, before_.returned_rows_by_peer);
  add(metrics.returned_bytes_by_peer, before_.returned_bytes_by_peer);
  show_by_expert(metrics.received_choices_by_expert);
  add(metrics.wait_seconds_by_peer, before_.wait_seconds_by_peer);
  double longest = 0;
  metrics.slowest_rank.reset();
  for (uint32_t rank = 0; rank < metrics.wait_seconds_by_peer.size(); ++rank) {
    if (rank == world->rank() || metrics.wait_seconds_by_peer[rank] <= longest) continue;
    longest = metrics.wait_seconds_by_peer[rank];
    metrics.slowest_rank = rank;
  }
  if (!context.rails) return metrics;
  context.rails->add_to(metrics);
  add(metrics.link_sent_bytes_by_peer, before_.link_sent_bytes_by_peer);
  add(metrics.link_arrived_bytes_by_peer, before_.link_arrived_bytes_by_peer);
  add(metrics.link_credit_wait_seconds_by_peer, before_.link_credit_wait_seconds_by_peer);
  add(metrics.link_row_wait_seconds_by_peer, before_.link_row_wait_seconds_by_peer);
  metrics.send_wait_seconds += before_.send_wait_seconds;
  metrics.forward_wait_seconds += before_.forward_wait_seconds;
  metrics.add_wait_seconds += before_.add_wait_seconds;
  internode::find_slowest(context.rails->map(), world->rank(), metrics);
  return metrics;
}

ExpertParallel::Load Session::load() const {
  ExpertParallel::Load load = context.observation.load();
  show_by_expert(load.tokens_per_expert);
  for (size_t rank = 0; rank < before_.wait_seconds_by_peer.size(); ++rank)
    if (rank < load.waited_us.size())
      load.waited_us[rank] += before_.wait_seconds_by_peer[rank] * 1e6;
  return load;
}

}  // namespace tokenyard::throughput
