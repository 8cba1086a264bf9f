#include "expert_parallel/low_latency/host/epochs.hpp"

namespace tokenyard::low_latency {

Workspace Epochs::read(const CallStreams& streams) const {
  // Waits first: CUDA may block, without a bound, in a copy to memory that is not pinned.
  streams.await(streams.last.get(), "the calls so far");
  Workspace workspace;
  accelerator_.copy(&workspace, this->workspace(), sizeof(workspace), streams.last.get());
  streams.await(streams.last.get(), "its epochs");
  return workspace;
}

void Epochs::write(const Workspace& workspace, const CallStreams& streams) const {
  const Stream stream = streams.last.get();
  accelerator_.copy(this->workspace(), &workspace, sizeof(workspace), stream);
  accelerator_.fill(this->workspace() + 1, 0, Workspace::bytes(ranks_) - sizeof(workspace), stream);
}

uint32_t Epochs::last_of(const Workspace& workspace) {
  uint32_t last = workspace.progress[0][0].sent;
  for (const auto& kind : workspace.progress)
    for (const uint32_t epoch : {kind[0].sent, kind[0].received})
      if (is_later(epoch, last)) last = epoch;
  return last;
}

Drained Epochs::drained_by(const Workspace& workspace) {
  const auto received = [&](Kind kind) {
    return workspace.progress[static_cast<uint32_t>(kind)][0].received;
  };
  return {received(Kind::dispatch), received(Kind::combine)};
}

Workspace Epochs::counting_from(uint32_t epoch) {
  Workspace workspace{};
  for (auto& kind : workspace.progress)
    for (Progress& progress : kind) progress = {.sent = epoch, .received = epoch};
  return workspace;
}

}  // namespace tokenyard::low_latency
