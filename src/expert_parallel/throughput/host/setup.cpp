#include "expert_parallel/throughput/host/setup.hpp"
#include "fabric/world_access.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/await_stream.hpp"
#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/by_expert/reduce_rows.hpp"
#include "expert_parallel/common/place_choices.hpp"
#include "expert_parallel/throughput/host/options.hpp"
#include "expert_parallel/throughput/kernels/cast_rows.hpp"

namespace tokenyard::throughput {

namespace {

Plan agreed_plan(World& world, const ExpertParallelOptions& options) {
  agree_on_options(world, options);
  check_options(options, world.size());
  return make_plan({.ranks = world.size(),
                    .experts = places_of(options, world.size()),
                    .row_bytes = options.hidden * 2,
                    .sms = options.sms,
                    .tuning = options.tuning},
                   accelerator_of(world).kind(), accelerator_of(world).capacity());
}

}  // namespace

Setup::Setup(World& world, const ExpertParallelOptions& options)
    : world(world),
      accelerator(accelerator_of(world)),
      options(options),
      partition(ExpertPartition::of(places_of(options, world.size()), world.size())),
      plan(agreed_plan(world, options)),
      first_present(present_ranks(world).front()) {
  accelerator.prepare(dispatch_kernel.entry);
  accelerator.prepare(combine_kernel.entry);
  accelerator.prepare(cast_rows_kernel.entry);
  accelerator.prepare(place_choices_kernel.entry);
  accelerator.prepare(expert_major::expand_rows_kernel.entry);
  accelerator.prepare(expert_major::dispatch_by_expert_kernel.entry);
  accelerator.prepare(expert_major::reduce_rows_kernel.entry);
}

Plan Setup::plan_of(uint32_t row_bytes, uint32_t sms) const {
  return make_plan({.ranks = world.size(),
                    .experts = places(),
                    .row_bytes = row_bytes,
                    .sms = sms == 0 ? plan.blocks : sms,
                    .tuning = options.tuning},
                   accelerator.kind(), accelerator.capacity());
}

void Setup::check_sms(uint32_t sms) const {
  const uint32_t most = std::max(plan.blocks, options.sms_max);
  if (sms > most)
    throw InvalidArgument("sms", fmt::format("at most sms_max = {}", most), std::to_string(sms));
}

void Setup::check_local_sms(uint32_t sms, const char* argument) const {
  const uint32_t most =
      std::max({plan.blocks, options.sms_max, accelerator.capacity().multiprocessors});
  if (sms > most)
    throw InvalidArgument(argument, fmt::format("at most {} multiprocessors", most),
                          std::to_string(sms));
}

void Setup::await_stream(Stream stream, const std::string& what) const {
  // Kernels end at their own deadline; the caller's other work gets as much time again.
  tokenyard::await_stream(accelerator, world.rank(), stream, 2 * world.timeout(),
                          "ExpertParallel: " + what);
}

}  // namespace tokenyard::throughput
