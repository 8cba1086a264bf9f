/// One rank's view of the control words: its own window, the addresses of the others, and the
/// workspace that only this rank's kernels use.
#pragma once

#include <optional>

#include "device/device_memory.hpp"
#include "device/peers.hpp"
#include "expert_parallel/common/absent_ranks.hpp"
#include "expert_parallel/throughput/host/setup.hpp"
#include "expert_parallel/throughput/kernels/call.hpp"
#include "fabric/arena.hpp"

namespace tokenyard::throughput {

class ControlWindow {
 public:
  /// Collective.
  explicit ControlWindow(const Setup& setup);
  /// Keeps the window unused while the arena exists, unless `give_back` was called: peers know its
  /// address and may still write there.
  ~ControlWindow();
  ControlWindow(const ControlWindow&) = delete;
  ControlWindow& operator=(const ControlWindow&) = delete;

  Control control() const { return {.windows = windows_, .layout = layout_}; }
  const Peers& arenas() const { return arenas_; }
  AbsentRanks absent() const { return {absent_ ? absent_->as<uint32_t>() : nullptr}; }
  Workspace* workspace() const { return workspace_->as<Workspace>(); }
  /// Returns the most blocks with which any rank may launch a call.
  uint32_t blocks_max() const { return layout_.blocks_max; }
  /// Returns the bytes of this rank's window in the arena.
  size_t bytes() const { return window_.bytes(); }
  /// Lets the window be freed: no peer writes there any more.
  void give_back() { is_known_ = false; }

 private:
  void open(const Setup& setup);
  void note_absent(const Setup& setup);
  void make_workspace(const Setup& setup);

  const ControlLayout layout_;
  ArenaBlock window_;
  bool is_known_ = false;               ///< whether peers may write there
  std::optional<DeviceMemory> table_;   ///< addresses of all windows
  Peers windows_{}, arenas_{};          ///< windows and arenas of all ranks
  std::optional<DeviceMemory> absent_;  ///< words of AbsentRanks, if some ranks are absent
  std::optional<DeviceMemory> workspace_;
};

}  // namespace tokenyard::throughput
