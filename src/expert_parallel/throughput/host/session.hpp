/// All that an ExpertParallel object has in one world. Each part uses only those before it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/combiner.hpp"
#include "expert_parallel/throughput/host/counts.hpp"
#include "expert_parallel/throughput/host/dispatcher.hpp"
#include "expert_parallel/throughput/host/failures.hpp"
#include "expert_parallel/throughput/host/grouper.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"
#include "expert_parallel/throughput/host/succession.hpp"
#include "tokenyard/error.hpp"

namespace tokenyard::throughput {

class Session {
  const ExpertParallel::Metrics before_;  ///< totals of the sessions before
  std::vector<uint64_t> choices_before_;  ///< [experts] received while they were at other places
  const uint64_t finished_here_;          ///< calls of the object before this was made

 public:
  /// Collective. `world`: pinned. `exchange` identifies the object. `before`: the session that this
  /// one follows, whose work has ended, or null.
  Session(std::shared_ptr<World> world, const ExpertParallelOptions& options,
          std::shared_ptr<const void> exchange, const Session* before);
  ~Session() { context.close(); }

  bool failed() const { return context.health->failed(); }
  bool captured() const { return context.last_stream.captured(); }
  /// Lets nothing be called any more. If a CUDA graph has captured calls, its replays fail from now
  /// on, and `take_replay` notices it.
  void retire();
  /// Returns whether there was a replay since `retire` or the last call of this that returned true.
  bool take_replay();
  /// Returns how many calls of the object this rank has finished, once their work has ended.
  uint64_t finished() const;
  /// Returns OperationAborted if a call that `before` has finished here was not finished by all
  /// ranks that have gone on.
  std::optional<OperationAborted> undone(const Session& before) const;
  /// Sets a map on which the ranks have agreed, once their last call has ended.
  void set_experts(std::span<const int32_t> expert_at);
  /// Returns totals of the object so far, by the ranks and experts of this session.
  ExpertParallel::Metrics metrics() const;
  ExpertParallel::Load load() const;

  const std::shared_ptr<World> world;
  /// Made before any peer learns an address of this rank: if it fails, nobody writes here.
  const Succession agreed;
  CallContext context;
  Counts counts{context.setup};
  ExpertMap experts{context.setup.world, context.setup.options.experts, context.setup.places()};
  Failures failures{context, counts, experts};
  RowCaster caster{context};
  Dispatcher dispatcher{context, counts, failures, experts, caster};
  Combiner combiner{context, failures};
  Grouper grouper{context, failures, dispatcher};

 private:
  /// Returns the words of the kernels, once the default stream's work has ended.
  Workspace workspace() const;
  /// Returns how many calls the kernels have finished.
  uint64_t finished_kernels() const;
  std::vector<uint64_t> choices_by_expert() const;
  /// Replaces counts by place by those of the experts there.
  void show_by_expert(std::vector<uint64_t>& choices) const;

  mutable std::mutex moving_;      ///< of experts, beside readers of metrics
  std::vector<uint64_t> counted_;  ///< [local experts] choices that choices_before_ includes
};

}  // namespace tokenyard::throughput
