// Suite `memory`: a put-then-signal kernel in right and wrong variants. With any seed, right
// variants are clean and wrong ones are reported.

#include <array>
#include <cstring>
#include <vector>

#include "fabric/abort_flag.hpp"
#include "fabric/arena.hpp"
#include "fabric/world_access.hpp"
#include "simulation/put_signal_kernel.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard {

TOKENYARD_DEFINE_HOST_KERNEL(put_signal_kernel, put_signal, PutSignalParams, PutSignalShared, 256)

namespace {

using simulation::SeedRun;

constexpr std::array kNames{"release",
                            "fence",
                            "release_add",
                            "bulk_store",
                            "bulk_load",
                            "relaxed_signal",
                            "gpu_scope_signal",
                            "gpu_scope_fence",
                            "relaxed_wait",
                            "no_barrier_before_signal",
                            "no_barrier_after_wait",
                            "bulk_store_without_proxy_fence",
                            "bulk_store_not_awaited",
                            "bulk_load_without_proxy_fence",
                            "bulk_load_not_awaited"};
static_assert(kNames.size() == kPutSignals);

struct Case {
  PutSignal how;
  uint32_t ranks, warps, words;
};

/// Runs one rank, which sends a message to the next; throws if the message that it gets is wrong.
void exchange(World& world, const Case& one) {
  Accelerator& accelerator = accelerator_of(world);
  const ArenaBlock block =
      arena_of(world).allocate(kPutSignalWordsMax * sizeof(uint64_t) + sizeof(uint32_t), Stream{});
  // Messages are multiples of 16 bytes, for bulk copies; the flag follows the largest message.
  const uint64_t flag = block.offset() + kPutSignalWordsMax * sizeof(uint64_t);
  accelerator.write_flag(reinterpret_cast<uint32_t*>(arena_of(world).base() + flag), 0);
  auto* const out =
      static_cast<uint64_t*>(accelerator.allocate(kPutSignalWordsMax * sizeof(uint64_t)));
  ErrorRecord failure(accelerator, abort_flag_of(world));
  world.barrier("flags are cleared");

  const uint32_t source = (world.rank() + world.size() - 1) % world.size();
  const PutSignalParams params{.how = one.how,
                               .rank = world.rank(),
                               .target = (world.rank() + 1) % world.size(),
                               .words = one.words,
                               .epoch = 1,
                               .arenas = arena_of(world).bases(),
                               .data = block.offset(),
                               .flag = flag,
                               .out = out,
                               .wait_context = failure.wait_context(world.timeout())};
  launch(accelerator, put_signal_kernel, {.blocks = 1, .warps = one.warps}, Stream{}, params);
  const Event end = accelerator.record(Stream{});
  accelerator.wait_until(accelerator.now() + 2 * world.timeout(),
                         [&] { return accelerator.done(end) || failure.failed(); });
  const std::array<std::string, 1> phases{"signal"};
  failure.check(phases);
  for (uint32_t index = 0; index < one.words; ++index) {
    const uint64_t wanted = put_signal_word(source, 1, index);
    if (out[index] != wanted)
      throw simulation::SuiteFailure(
          fmt::format("word {} is {:#x}, not {:#x}", index, out[index], wanted));
  }
  world.barrier("all have looked");
}

void run_suite(SeedRun& run) {
  // Only the right variants are mutated.
  const uint64_t variants =
      run.mutator == nullptr ? kPutSignals : static_cast<uint64_t>(PutSignal::relaxed_signal);
  const auto how = static_cast<PutSignal>(run.seed % variants);
  run.option("variant", kNames[run.seed % variants]);
  const Case one{.how = how,
                 .ranks = run.option("ranks", run.random.between(2, 4)),
                 .warps = run.option("warps", run.random.between(2, 4)),
                 .words = run.option("words", 2 * run.random.between(17, kPutSignalWordsMax / 2))};
  simulated::Options options{.ranks = one.ranks, .arena_bytes = 64 << 10};
  // In a run of a right variant a rank may stop midway; the others must still finish.
  const bool right = how < PutSignal::relaxed_signal;
  if (right && run.option("stops", run.random.chance(256))) {
    options.stop = simulation::RankStop{
        .rank = run.option("rank", run.random.below(one.ranks)),
        .after_steps = run.option("after_steps", run.random.below(1u << run.random.between(5, 11))),
        .fate = static_cast<simulation::InFlight>(run.random.below(3))};
    options.stop_is_noticed = run.option("noticed", run.random.chance(512));
  }
  const auto result = simulated::run(run, options, [&](World& world) { exchange(world, one); });
  if (!right) {
    run.require(!result.findings.empty(), "nothing was reported\n{}", result.drawn);
    return;
  }
  result.require_clean_after(options.stop);
}

const bool registered = simulation::add_suite(
    {.name = "memory",
     .what = "put, signal, wait: right variants are clean, wrong ones reported",
     .run = run_suite,
     .explained = {{simulation::Fault::proxy_fence_removed, "put_signal_kernel.hpp:141",
                    "the fence before the load comes later in the same thread and covers it"}},
     .seeds = 3000});

}  // namespace
}  // namespace tokenyard
