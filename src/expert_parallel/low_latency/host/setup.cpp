#include "expert_parallel/low_latency/host/setup.hpp"
#include "fabric/world_access.hpp"

#include "expert_parallel/common/place_choices.hpp"
#include "expert_parallel/low_latency/host/options.hpp"

namespace tokenyard::low_latency {

Setup::Setup(World& world, const LowLatencyOptions& options)
    : world(world),
      accelerator(accelerator_of(world)),
      options(options),
      paths(agree_on_options(world, options)),
      plan(make_plan(options, world.size(), accelerator.kind(), accelerator.capacity())),
      layout(window_layout(options, world.size())),
      sums(SumsLayout::of(options.hidden)),
      homes(ExpertHomes::of(places_of(options, world.size()), world.size())) {
  accelerator.prepare(place_choices_kernel.entry);
  accelerator.prepare(dispatch_kernel.entry);
  accelerator.prepare(combine_kernel.entry);
  accelerator.prepare(combine_logfmt_kernel.entry);
}

}  // namespace tokenyard::low_latency
