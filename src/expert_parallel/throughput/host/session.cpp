#include "expert_parallel/throughput/host/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fabric/world_access.hpp"

namespace tokenyard::throughput {

namespace {

/// Further than calls of one session count, so that epochs of different ranks never meet.
constexpr uint32_t kEpochsApart = 1u << 20;

std::optional<Legacy> legacy_of(const Session* before, uint64_t finished, const Setup& setup) {
  if (before == nullptr) return std::nullopt;
  return Legacy{.finished = finished,
                .map = before->experts.carried_to(setup.places(), setup.world.size())};
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
    : world(std::move(of)),
      context(world, options, std::move(exchange)),
      before_(before == nullptr ? ExpertParallel::Metrics{} : before->metrics()),
      finished_here_(before == nullptr ? 0 : before->finished()),
      agreed_(Succession::agree(*world, legacy_of(before, finished_here_, context.setup))) {
  experts.set(agreed_.map);
}

std::optional<OperationAborted> Session::undone(const Session& before, const char* last) const {
  if (finished_here_ <= agreed_.finished) return std::nullopt;
  std::vector<uint32_t> lost;
  for (const uint32_t rank : present_ranks(*before.world)) {
    const bool is_new = std::ranges::binary_search(agreed_.newcomers, rank);
    if (is_new || !is_present(*world, rank)) lost.push_back(rank);
  }
  return OperationAborted(
      fmt::format("ExpertParallel.{}, which has returned here but not on all ranks: call", last),
      agreed_.finished + 1, membership_epoch_of(*before.world), std::move(lost));
}

void Session::retire() {
  if (!captured()) return;
  context.health->cell.clear();
  // Every rank counts from another number on, so no word of a replay is ever awaited; and a wait
  // ends at once.
  const uint32_t epoch = last_epoch() + (world->rank() + 1) * kEpochsApart;
  Accelerator& accelerator = context.setup.accelerator;
  accelerator.copy(&context.window.workspace()->epoch, &epoch, sizeof(epoch), Stream{});
  context.setup.await_stream(Stream{}, "the end of what was captured");
  world->cancel();
}

uint32_t Session::last_epoch() const {
  uint32_t epoch = 0;
  context.setup.accelerator.copy(&epoch, &context.window.workspace()->epoch, sizeof(epoch),
                                 Stream{});
  context.setup.await_stream(Stream{}, "its epoch");
  return epoch;
}

uint64_t Session::finished() const {
  const uint32_t calls = last_epoch() - epoch_before(*world);
  // A call that fails has counted itself, and none begins after it.
  return agreed_.finished + calls - (context.health->cell.failed() && calls != 0 ? 1 : 0);
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
  add(metrics.received_choices_by_expert, before_.received_choices_by_expert);
  add(metrics.wait_seconds_by_peer, before_.wait_seconds_by_peer);
  double longest = 0;
  metrics.slowest_rank.reset();
  for (uint32_t rank = 0; rank < metrics.wait_seconds_by_peer.size(); ++rank) {
    if (rank == world->rank() || metrics.wait_seconds_by_peer[rank] <= longest) continue;
    longest = metrics.wait_seconds_by_peer[rank];
    metrics.slowest_rank = rank;
  }
  return metrics;
}

ExpertParallel::Load Session::load() const {
  ExpertParallel::Load load = context.observation.load();
  add(load.tokens_per_expert, before_.received_choices_by_expert);
  for (size_t rank = 0; rank < before_.wait_seconds_by_peer.size(); ++rank)
    if (rank < load.waited_us.size())
      load.waited_us[rank] += before_.wait_seconds_by_peer[rank] * 1e6;
  return load;
}

}  // namespace tokenyard::throughput
