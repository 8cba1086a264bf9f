// Suite `memory`: a put-then-signal kernel in right and wrong variants. The right ones are clean,
// whatever the seed does; every wrong one is reported, whatever the seed does.

#include <array>
#include <cstring>
#include <vector>

#include "fabric/alarm_bell.hpp"
#include "fabric/arena.hpp"
#include "simulation/put_signal_kernel.hpp"
#include "simulation/suite.hpp"
#include "world/simulated.hpp"

namespace tokenyard {

DEFINE_KERNEL(put_signal_kernel, put_signal, PutSignalParams, PutSignalShared, 256)

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

/// One rank's part: its message goes to the next rank. Throws if what arrives is wrong.
void exchange(World& world, const Case& one) {
  Accelerator& accelerator = world.accelerator();
  const ArenaBlock block =
      world.arena().allocate(kPutSignalWordsMax * sizeof(uint64_t) + sizeof(uint32_t), Stream{});
  // A bulk copy is sixteen bytes or many; the flag follows the largest message.
  const uint64_t flag = block.offset() + kPutSignalWordsMax * sizeof(uint64_t);
  accelerator.write_flag(reinterpret_cast<uint32_t*>(world.arena().base() + flag), 0);
  auto* const out =
      static_cast<uint64_t*>(accelerator.allocate(kPutSignalWordsMax * sizeof(uint64_t)));
  FailureCell failure(accelerator, world.alarm());
  world.barrier("flags are cleared");

  const uint32_t source = (world.rank() + world.size() - 1) % world.size();
  const PutSignalParams params{.how = one.how,
                               .rank = world.rank(),
                               .target = (world.rank() + 1) % world.size(),
                               .words = one.words,
                               .epoch = 1,
                               .arenas = world.arena().bases(),
                               .data = block.offset(),
                               .flag = flag,
                               .out = out,
                               .patience = failure.patience(world.timeout())};
  launch(accelerator, put_signal_kernel, {.blocks = 1, .warps = one.warps}, Stream{}, params);
  const Event end = accelerator.record(Stream{});
  accelerator.wait_until(accelerator.now() + world.timeout(),
                         [&] { return accelerator.done(end); });
  const std::array<std::string, 2> phases{"signal", "loads"};
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
  // Mutants are made of the right variants.
  const uint64_t variants =
      run.mutator == nullptr ? kPutSignals : static_cast<uint64_t>(PutSignal::relaxed_signal);
  const auto how = static_cast<PutSignal>(run.seed % variants);
  run.option("variant", kNames[run.seed % variants]);
  const Case one{.how = how,
                 .ranks = run.option("ranks", run.random.between(2, 4)),
                 .warps = run.option("warps", run.random.between(2, 4)),
                 .words = run.option("words", 2 * run.random.between(17, kPutSignalWordsMax / 2))};
  const auto result = simulated::run(run, {.ranks = one.ranks, .arena_bytes = 64 << 10},
                                     [&](World& world) { exchange(world, one); });
  if (how < PutSignal::relaxed_signal)
    result.require_clean();
  else
    run.require(!result.findings.empty(), "nothing was reported\n{}", result.drawn);
}

const bool registered = simulation::add_suite(
    {.name = "memory",
     .what = "put, signal, wait: right variants are clean, wrong ones reported",
     .run = run_suite,
     .seeds = 3000});

}  // namespace
}  // namespace tokenyard
