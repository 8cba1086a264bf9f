/// The parts of an ExpertParallel object. Each uses only those before it.
#pragma once

#include "expert_parallel/common/expert_map.hpp"
#include "expert_parallel/throughput/host/call_context.hpp"
#include "expert_parallel/throughput/host/combiner.hpp"
#include "expert_parallel/throughput/host/counts.hpp"
#include "expert_parallel/throughput/host/dispatcher.hpp"
#include "expert_parallel/throughput/host/failures.hpp"
#include "expert_parallel/throughput/host/grouper.hpp"
#include "expert_parallel/throughput/host/row_caster.hpp"

namespace tokenyard {

struct ExpertParallel::Impl {
  /// Collective.
  Impl(World& world, const ExpertParallelOptions& options) : context(world, options) {}
  ~Impl() { context.close(); }

  throughput::CallContext context;
  throughput::Counts counts{context.setup};
  ExpertMap experts{context.setup.world, context.setup.options.experts, context.setup.places()};
  HeldExperts held{experts, context.setup.world.rank()};
  throughput::Failures failures{context, counts, experts};
  throughput::RowCaster caster{context};
  throughput::Dispatcher dispatcher{context, counts, failures, experts, caster};
  throughput::Combiner combiner{context, failures};
  throughput::Grouper grouper{context, failures, dispatcher};
};

}  // namespace tokenyard
