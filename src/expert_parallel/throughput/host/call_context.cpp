/// What an ExpertParallel object keeps on its device from one call to the next.
#include <algorithm>

#include "device/await_stream.hpp"
#include "expert_parallel/by_expert/dispatch_by_expert.hpp"
#include "expert_parallel/by_expert/expand_rows.hpp"
#include "expert_parallel/by_expert/reduce_rows.hpp"
#include "expert_parallel/throughput/host/options.hpp"
#include "expert_parallel/throughput/host/route_state.hpp"
#include "expert_parallel/throughput/kernels/cast_rows.hpp"
#include "fabric/gather.hpp"
#include "fabric/meet_windows.hpp"

namespace tokenyard {

namespace {

throughput::Plan agreed_plan(World& world, const ExpertParallelOptions& options) {
  agree_on_options(world, options);
  check_options(options, world.size());
  return throughput::make_plan({.ranks = world.size(),
                                .experts = options.experts,
                                .row_bytes = options.hidden * 2,
                                .sms = options.sms,
                                .tuning = options.tuning},
                               world.accelerator().kind(), world.accelerator().capacity());
}

}  // namespace

ExpertParallel::Parts::Parts(World& world, const ExpertParallelOptions& options)
    : world(world),
      options(options),
      partition(ExpertPartition::of(options.experts, world.size())),
      plan(agreed_plan(world, options)),
      accelerator_(world.accelerator()),
      arena_(world.arena()),
      health_(std::make_shared<Health>(accelerator_, world.alarm())),
      last_stream_(accelerator_) {
  accelerator_.prepare(throughput::dispatch_kernel.entry);
  accelerator_.prepare(throughput::combine_kernel.entry);
  accelerator_.prepare(throughput::cast_rows_kernel.entry);
  accelerator_.prepare(throughput::place_picks_kernel.entry);
  accelerator_.prepare(expert_major::expand_rows_kernel.entry);
  accelerator_.prepare(expert_major::dispatch_by_expert_kernel.entry);
  accelerator_.prepare(expert_major::reduce_rows_kernel.entry);
  const std::vector<uint32_t> blocks = gather(world, std::max(plan.blocks, options.sms_max),
                                              "ExpertParallel: most blocks of a rank");
  control_ = {.ranks = world.size(),
              .blocks_max = *std::max_element(blocks.begin(), blocks.end()),
              .local_experts_max = partition.held_at_most(),
              .rows_max = world.size() * options.tokens_max};
  open_windows();
  using enum DeviceMemory::Kind;
  workspace_ = own<throughput::Workspace>(sizeof(throughput::Workspace), device);
  statistics_ = {
      .totals = nullptr, .shown = nullptr, .local_experts = local_experts(), .ranks = world.size()};
  const size_t totals = statistics_.count() * sizeof(uint64_t);
  statistics_.totals = own<uint64_t>(totals, device);
  statistics_.shown = own<uint64_t>(totals, shared);
  record_ = own<throughput::CountsRecord>(
      throughput::CountsRecord::bytes(world.size(), local_experts()), shared);
}

throughput::Plan ExpertParallel::Parts::plan_of(uint32_t row_bytes, uint32_t sms) const {
  return throughput::make_plan({.ranks = world.size(),
                                .experts = options.experts,
                                .row_bytes = row_bytes,
                                .sms = sms == 0 ? plan.blocks : sms,
                                .tuning = options.tuning},
                               accelerator_.kind(), accelerator_.capacity());
}

ExpertParallel::Parts::~Parts() {
  try {
    // What follows frees memory that a kernel under way would use.
    if (last_stream_.in_use() && !health_->failed())
      await_stream(last_stream_.get(), "the end of its last call");
  } catch (const std::exception&) {
    health_->interrupted = true;  // A destructor cannot report it.
  }
  if (health_->failed()) window_.quarantine();
}

/// Collective. A window is zeroed before anybody learns where it lies.
void ExpertParallel::Parts::open_windows() {
  const Stream stream{};
  window_ = arena_.allocate(control_.bytes(), stream);
  accelerator_.fill(window_.data(), 0, control_.bytes(), stream);
  await_stream(stream, "zeroed words");
  const auto keep = [&](std::span<std::byte* const> windows) {
    auto* const table = own<std::byte*>(windows.size_bytes(), DeviceMemory::Kind::device);
    accelerator_.copy(table, windows.data(), windows.size_bytes(), stream);
    await_stream(stream, "the table of windows");
    windows_ = Peers::of(windows, world.rank(), table);
  };
  meet_windows(world, window_, "ExpertParallel: windows of control words", keep);
  std::vector<std::byte*> addresses(world.size());
  for (uint32_t rank = 0; rank < addresses.size(); ++rank) addresses[rank] = arena_.base_of(rank);
  arenas_ = Peers::of(addresses, world.rank(), arena_.bases().table);
}

void ExpertParallel::Parts::await_stream(Stream stream, const std::string& what) {
  // Kernels end at their own deadline; what else the caller has enqueued has as long again.
  tokenyard::await_stream(accelerator_, world.rank(), stream, 2 * world.timeout(),
                          "ExpertParallel: " + what);
}

void ExpertParallel::Parts::wait(Stream stream) {
  await_stream(stream, "the end of a stream's work");
  last_stream_.forget(stream);
  check();
}

}  // namespace tokenyard
