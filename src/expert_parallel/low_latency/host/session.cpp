#include "expert_parallel/low_latency/host/session.hpp"

#include <algorithm>
#include <utility>

namespace tokenyard::low_latency {

namespace {

/// Further than calls of one session count, so that epochs of different ranks never meet.
constexpr uint32_t kEpochsApart = 1u << 20;

std::optional<CallContext::Legacy> legacy_of(const Session* before) {
  if (before == nullptr) return std::nullopt;
  const CallContext& context = before->context;
  return CallContext::Legacy{.last_epoch = Epochs::last_of(context.epochs.read(context.streams)),
                             .experts = context.experts};
}

}  // namespace

Session::Session(std::shared_ptr<World> of, const LowLatencyOptions& options, const Session* before)
    : world(std::move(of)),
      context(*world, options, legacy_of(before)),
      batch_calls(context, before == nullptr ? LowLatency::Metrics{} : before->metrics()) {}

void Session::retire() {
  context.batches.end(LowLatencyHandle::Stage::outlived);
  if (!captured()) return;
  unmask_all();
  if (context.put_peers) context.put_peers->retire(context.streams);
  // Every rank counts from another number on, so no word of a replay is ever awaited; and a wait
  // ends at once.
  const uint32_t epoch = Epochs::last_of(context.epochs.read(context.streams));
  const Workspace apart = Epochs::counting_from(epoch + (world->rank() + 1) * kEpochsApart);
  context.epochs.write(apart, context.streams);
  context.streams.await(context.streams.last.get(), "the end of what was captured");
  world->cancel();
}

bool Session::take_replay() {
  if (!captured()) return false;
  const bool replayed = std::ranges::any_of(context.masks.list(), [](const FailedRank& masked) {
    return masked.why != FailedRank::Why::left_out;
  });
  if (!replayed) return false;
  unmask_all();
  context.streams.await(Stream{}, "the masks of a replay");
  return true;
}

void Session::unmask_all() {
  for (uint32_t rank = 0; rank < world->size(); ++rank)
    if (!context.masks.absent(rank)) context.masks.clear(rank, Stream{});
}

LowLatency::Metrics Session::metrics() const {
  LowLatency::Metrics metrics = batch_calls.totals();
  for (uint32_t rank = 0; rank < world->size(); ++rank)
    metrics.masked_by_peer.push_back(context.masks.masked(rank) ? 1 : 0);
  return metrics;
}

}  // namespace tokenyard::low_latency
