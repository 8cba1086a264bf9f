#include "expert_parallel/throughput/host/watched_rows.hpp"

#include "device/owned_event.hpp"

namespace tokenyard::throughput {

WatchedRows WatchedRows::of(const CallContext& context, const DispatchArguments& input,
                            Stream stream, Route::State& route) {
  WatchedRows watched{.words = {.words = nullptr,
                                .ranks = context.setup.world.size(),
                                .local_experts = context.setup.local_experts()},
                      .memory = nullptr};
  if (!input.watcher) return watched;
  Accelerator& accelerator = context.setup.accelerator;
  Readiness& words = watched.words;
  watched.memory = context.arena.scratch(words.bytes(), stream, route);
  ArenaBlock& block = watched.memory->block();
  words.words = reinterpret_cast<uint32_t*>(block.data());
  accelerator.fill(words.words, 0, words.bytes(), stream);
  const Stream watcher = *input.watcher;
  block.record_stream(watcher);
  const OwnedEvent cleared(accelerator, accelerator.record(stream));
  accelerator.wait(watcher, cleared.get());
  return watched;
}

}  // namespace tokenyard::throughput
