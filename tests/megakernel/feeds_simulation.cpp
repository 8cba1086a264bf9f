// Suite `megakernel_feeds`: hosts that feed a run and stop it. A run ends after all that was fed
// before its stop, however late each word arrives.
#include "fabric/abort_flag.hpp"
#include "fabric/world_access.hpp"
#include "megakernel/feed_kernel.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard::megakernel {

TOKENYARD_DEFINE_HOST_KERNEL(feed_kernel, feed, FeedParams, FeedShared, 32)

namespace {

using simulation::SeedRun;

template <class T>
T* zeroed(Accelerator& accelerator, size_t count = 1) {
  auto* const values = static_cast<T*>(accelerator.allocate_shared(count * sizeof(T)));
  for (size_t i = 0; i < count; ++i) values[i] = T{};
  return values;
}

void run_one(World& world, FeedParams params) {
  Accelerator& accelerator = accelerator_of(world);
  ErrorRecord failure(accelerator, abort_flag_of(world));
  params.run.rank = 0;
  params.run.ranks = 1;
  params.run.fed = true;
  params.run.record = zeroed<RunRecord>(accelerator);
  params.run.workspace = zeroed<Workspace>(accelerator);
  params.run.wait_context = failure.wait_context(world.timeout());
  params.inputs = zeroed<uint64_t>(accelerator, kFedMax);
  params.outputs = zeroed<uint64_t>(accelerator, kFedMax);
  params.ran = zeroed<uint32_t>(accelerator);
  launch(accelerator, feed_kernel, {.blocks = 2, .warps = 1}, Stream{}, params);
  const Event end = accelerator.record(Stream{});
  accelerator.wait_until(accelerator.now() + 2 * world.timeout(),
                         [&] { return accelerator.done(end) || failure.failed(); });
  failure.check({});
  uint32_t fed = 0;
  for (uint32_t call = 0; call < params.feeds; ++call) fed += params.fed[call];
  if (*params.ran != fed) {
    throw simulation::SuiteFailure(
        fmt::format("the run ended after {} iterations of {} fed", *params.ran, fed));
  }
  for (uint32_t i = 0; i < fed; ++i) {
    if (params.outputs[i] != fed_input(i) + 1)
      throw simulation::SuiteFailure(fmt::format("iteration {} had another input", i));
  }
  for (void* memory : {static_cast<void*>(params.run.record), static_cast<void*>(params.inputs),
                       static_cast<void*>(params.run.workspace), static_cast<void*>(params.outputs),
                       static_cast<void*>(params.ran)})
    accelerator.free_shared(memory);
}

void run_suite(SeedRun& run) {
  FeedParams params{};
  params.run.run = run.option("run", run.random.chance(512) ? 1u : UINT32_MAX);
  params.feeds = run.option("feeds", run.random.between(1, kFeedsMax));
  for (uint32_t call = 0; call < params.feeds; ++call)
    params.fed[call] = run.random.between(call == 0 ? 0 : 1, kFedMax / kFeedsMax);
  params.awaits = run.option("awaits", run.random.below(1u << params.feeds));
  // A call that feeds nothing has no output to look at.
  if (params.fed[0] == 0) params.awaits &= ~1u;
  const simulated::Result result = simulated::run(run, {.ranks = 1, .arena_bytes = 64 << 10},
                                                  [&](World& world) { run_one(world, params); });
  result.require_clean({});
}

const bool registered = simulation::add_suite(
    {.name = "megakernel_feeds",
     .what = "a host feeds a run and stops it; all that it fed is run, with its inputs",
     .run = run_suite,
     .seeds = 3000});

}  // namespace
}  // namespace tokenyard::megakernel
