/// All that an ExpertParallel object has in one world. Each part uses only those before it.
#pragma once

#include <memory>
#include <optional>

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
 public:
  /// Collective. `world`: pinned. `exchange` identifies the object. `before`: the session that this
  /// one follows, whose work has ended, or null.
  Session(std::shared_ptr<World> world, const ExpertParallelOptions& options,
          std::shared_ptr<const void> exchange, const Session* before);
  ~Session() { context.close(); }

  bool failed() const { return context.health->failed(); }
  bool captured() const { return context.last_stream.captured(); }
  /// Lets nothing be called any more. If a CUDA graph has captured calls, its replays fail from now
  /// on, and `replayed` notices it.
  void retire();
  bool replayed() const { return captured() && context.health->cell.failed(); }
  /// Returns how many calls of the object this rank has finished, once their work has ended.
  uint64_t finished() const;
  /// Returns OperationAborted if a call that `before` has finished here was not finished by all
  /// ranks that have gone on. `last` names the last call that has returned here.
  std::optional<OperationAborted> undone(const Session& before, const char* last) const;
  /// Returns totals of the object so far, by the ranks and experts of this session.
  ExpertParallel::Metrics metrics() const;
  ExpertParallel::Load load() const;

  const std::shared_ptr<World> world;
  CallContext context;
  Counts counts{context.setup};
  ExpertMap experts{context.setup.world, context.setup.options.experts, context.setup.places()};
  Failures failures{context, counts, experts};
  RowCaster caster{context};
  Dispatcher dispatcher{context, counts, failures, experts, caster};
  Combiner combiner{context, failures};
  Grouper grouper{context, failures, dispatcher};

 private:
  /// Returns the number of the last call that the kernels have begun.
  uint32_t last_epoch() const;

  const ExpertParallel::Metrics before_;  ///< totals of the sessions before
  const uint64_t finished_here_;          ///< calls of the object before this was made
  const Succession agreed_;               ///< when this was made
};

}  // namespace tokenyard::throughput
