#include "expert_parallel/throughput/host/control_window.hpp"
#include "fabric/world_access.hpp"

#include <algorithm>
#include <vector>

#include "fabric/collective_step.hpp"
#include "fabric/exchange_window_addresses.hpp"
#include "fabric/gather.hpp"

namespace tokenyard::throughput {

namespace {

ControlLayout agreed_layout(const Setup& setup) {
  const std::vector<uint32_t> blocks =
      gather(setup.world, std::max(setup.plan.blocks, setup.options.sms_max),
             "ExpertParallel: most blocks of a rank");
  return {.ranks = setup.world.size(),
          .blocks_max = *std::max_element(blocks.begin(), blocks.end()),
          .local_experts_max = setup.partition.held_at_most(),
          .rows_max = setup.world.size() * setup.options.tokens_max};
}

}  // namespace

ControlWindow::ControlWindow(const Setup& setup)
    : layout_(agreed_layout(setup)),
      window_(allocate_on_all(setup.world, layout_.bytes(), "ExpertParallel: window")) {
  try {
    open(setup);
    note_absent(setup);
    make_workspace(setup);
  } catch (...) {
    if (is_known_) window_.quarantine();
    throw;
  }
}

ControlWindow::~ControlWindow() {
  if (is_known_) window_.quarantine();
}

void ControlWindow::make_workspace(const Setup& setup) {
  workspace_.emplace(setup.accelerator, sizeof(Workspace), DeviceMemory::Kind::device);
  const uint32_t epoch = epoch_before(setup.world);
  setup.accelerator.copy(&workspace()->epoch, &epoch, sizeof(epoch), Stream{});
  setup.await_stream(Stream{}, "its epoch");
}

/// Zeroes the window before any peer learns its address.
void ControlWindow::open(const Setup& setup) {
  const Stream stream{};
  World& world = setup.world;
  setup.accelerator.fill(window_.data(), 0, layout_.bytes(), stream);
  setup.await_stream(stream, "zeroed words");
  const auto keep = [&](std::span<std::byte* const> windows) {
    table_.emplace(setup.accelerator, windows.size_bytes(), DeviceMemory::Kind::device);
    auto* const table = table_->as<std::byte*>();
    setup.accelerator.copy(table, windows.data(), windows.size_bytes(), stream);
    setup.await_stream(stream, "the table of windows");
    windows_ = Peers::of(windows, world.rank(), table);
  };
  exchange_window_addresses(world, window_, "ExpertParallel: windows of control words", keep);
  is_known_ = true;
  Arena& arena = arena_of(world);
  std::vector<std::byte*> addresses(world.size());
  for (uint32_t rank = 0; rank < addresses.size(); ++rank) addresses[rank] = arena.base_of(rank);
  arenas_ = Peers::of(addresses, world.rank(), arena.bases().table);
}

void ControlWindow::note_absent(const Setup& setup) {
  std::vector<uint32_t> words((setup.world.size() + 31) / 32);
  for (uint32_t rank = 0; rank < setup.world.size(); ++rank)
    if (!is_present(setup.world, rank)) words[rank / 32] |= 1u << rank % 32;
  if (std::ranges::max(words) == 0) return;
  const size_t bytes = words.size() * sizeof(uint32_t);
  absent_.emplace(setup.accelerator, bytes, DeviceMemory::Kind::device);
  setup.accelerator.copy(absent_->as<void>(), words.data(), bytes, Stream{});
  setup.await_stream(Stream{}, "the absent ranks");
}

}  // namespace tokenyard::throughput
