/// Masks from the host's side, and how ranks come back.
#include <fmt/format.h>

#include <algorithm>

#include "expert_parallel/common/caller_memory.hpp"
#include "expert_parallel/low_latency/host/call_context.hpp"

namespace tokenyard {

using low_latency::Drained;
using low_latency::Progress;
using low_latency::RankSet;
using low_latency::Workspace;

namespace {

Drained drained_by(const Workspace& workspace) {
  const auto received = [&](low_latency::Kind kind) {
    return workspace.progress[static_cast<uint32_t>(kind)][0].received;
  };
  return {received(low_latency::Kind::dispatch), received(low_latency::Kind::combine)};
}

}  // namespace

void LowLatency::Parts::write_mask(int32_t* out, Stream stream) {
  require_open();
  require_pointer(out, "out", world.size(), alignof(int32_t));
  last_stream_.begin_call(stream);
  accelerator_.copy(out, masks_.masks().failed, world.size() * sizeof(*out), stream);
}

void LowLatency::Parts::require_nothing_left(const char* asked) const {
  if (dispatches_left_.empty() && combines_left_.empty()) return;
  throw InvalidArgument("hook", fmt::format("called before {}", asked), "not called");
}

Workspace LowLatency::Parts::read_workspace() {
  // First, since CUDA may block in a copy to memory that is not pinned, where nothing bounds it.
  await_stream(last_stream_.get(), "the calls so far");
  Workspace workspace;
  accelerator_.copy(&workspace, workspace_.as<Workspace>(), sizeof(workspace), last_stream_.get());
  await_stream(last_stream_.get(), "its epochs");
  return workspace;
}

uint32_t LowLatency::Parts::epoch() {
  require_open();
  const Workspace workspace = read_workspace();
  uint32_t last = 0;
  for (const auto& kind : workspace.progress)
    last = std::max({last, kind[0].sent, kind[0].received});
  return last;
}

/// For combines that were captured, which no handle stops: the tokens' owners miss sums, and count
/// their picks as lost. Of this rank's own tokens nothing is missing, and nothing would be counted.
void LowLatency::Parts::forget_rows() {
  const size_t row_slots = size_t{options.tokens_max} * options.topk;
  for (const auto& batch : batches_)
    for (uint32_t rank = 0; rank < world.size(); ++rank)
      if (rank != world.rank())
        accelerator_.fill(batch->out().row_slot + rank * row_slots, 0xff,
                          row_slots * sizeof(*batch->out().row_slot), last_stream_.get());
}

/// A batch under way may hold zeros for rows that a masked rank sent too late, and once the mask is
/// gone nothing tells them from rows of zeros; or lack rows of a rank that waits for their sums.
/// Nor does a rank know whom others have masked. So the batches end, whoever was masked.
void LowLatency::Parts::readmit(const RankSet& ranks, Drained drained) {
  end_batches();
  forget_rows();
  std::byte* const window = window_.data();
  for (uint32_t rank = 0; rank < world.size(); ++rank) {
    if (!ranks.contains(rank)) continue;
    for (const uint32_t parity : {0, 1}) {
      accelerator_.fill(window + layout_.row(parity, rank, 0), 0xff,
                        options.tokens_max * layout_.row_bytes(), last_stream_.get());
      accelerator_.fill(window + layout_.partial(parity, rank, 0), 0xff,
                        options.tokens_max * layout_.partial_bytes(), last_stream_.get());
    }
    accelerator_.copy(window + layout_.drained(rank), &drained, sizeof(drained),
                      last_stream_.get());
    masks_.clear(rank, last_stream_.get());
    const std::lock_guard lock(findings_mutex_);
    differences_raised_.erase(rank);
  }
  await_stream(last_stream_.get(), "refilled staging");
}

void LowLatency::Parts::update_mask(uint32_t rank, bool masked) {
  require_open();
  if (rank >= world.size() || rank == world.rank())
    throw InvalidArgument("rank", fmt::format("another of the {} ranks", world.size()),
                          std::to_string(rank));
  if (masked) {
    masks_.leave_out(rank, last_stream_.get());
    // What is launched next comes after it, on whatever stream: replays are in no order with a
    // stream that is not in use.
    if (!last_stream_.in_use()) await_stream(last_stream_.get(), "a mask");
    return;
  }
  require_nothing_left("a rank is unmasked");
  const Workspace workspace = read_workspace();
  RankSet one{};
  one.insert(rank);
  readmit(one, drained_by(workspace));
}

void LowLatency::Parts::clear_mask() {
  require_open();
  require_nothing_left("the mask is cleared");
  const Workspace workspace = read_workspace();
  RankSet masked_now{};
  for (const MaskedRank& rank : masks_.list()) masked_now.insert(rank.rank);
  readmit(masked_now, drained_by(workspace));
}

void LowLatency::Parts::restart(uint32_t epoch) {
  const uint32_t last = this->epoch();
  if (static_cast<int32_t>(epoch - last) < 0)
    throw InvalidArgument("epoch", fmt::format("at least {}, the last call's", last),
                          std::to_string(epoch));
  Workspace workspace{};
  for (auto& kind : workspace.progress)
    for (Progress& progress : kind) progress = {.sent = epoch, .received = epoch};
  accelerator_.copy(workspace_.as<Workspace>(), &workspace, sizeof(workspace), last_stream_.get());
  // What the living have left is refilled as well: a call of theirs may have ended early.
  readmit(RankSet::first(world.size()), {epoch, epoch});
}

}  // namespace tokenyard
