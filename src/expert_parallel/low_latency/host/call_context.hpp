/// The host side of one object's calls. Inside of LowLatency.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "device/device_memory.hpp"
#include "expert_parallel/common/last_stream.hpp"
#include "expert_parallel/low_latency/host/batch.hpp"
#include "expert_parallel/low_latency/host/rank_masks.hpp"
#include "expert_parallel/low_latency/kernels/sums_layout.hpp"
#include "fabric/arena.hpp"

namespace tokenyard {

struct LowLatency::Parts {
 public:
  using Handle = std::shared_ptr<LowLatencyHandle>;

  Parts(World& world, const LowLatencyOptions& options);
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Calls (calls.cpp, findings.cpp).
  LowLatencyReceived dispatch(const LowLatencyInput& input, const LowLatencyCall& call);
  void combine(const LowLatencyCombine& what, const Handle& handle, const LowLatencyCall& call);
  void receive(const Handle& handle, Stream stream);
  void* combine_buffer(const Handle& handle);
  void check();
  void wait(Stream stream);

  // Masks and epochs (restart.cpp).
  std::vector<MaskedRank> masked() const { return masks_.list(); }
  void write_mask(int32_t* out, Stream stream);
  void update_mask(uint32_t rank, bool masked);
  void clear_mask();
  uint32_t epoch();
  void restart(uint32_t epoch);
  void close();

  uint32_t local_experts() const { return homes_.held_by(world.rank()); }
  uint32_t first_expert() const { return homes_.first_of(world.rank()); }

  World& world;
  const LowLatencyOptions options;

 private:
  // Arguments (arguments.cpp). They throw before anything is launched.
  void check_input(const LowLatencyInput& input) const;
  void check_combine(const LowLatencyCombine& what, const LowLatencyHandle& handle) const;
  void check_handle(const Handle& handle, LowLatencyHandle::Stage stage) const;
  uint32_t check_call(const LowLatencyCall& call) const;  ///< its blocks
  void check_dispatch_call(const LowLatencyCall& call, uint32_t blocks) const;
  void require_format(LowLatencyRows rows) const;

  void open_windows();
  void await_stream(Stream stream, const std::string& what);
  void require_open() const;
  /// A call may be made: the object is open, and nobody has cancelled.
  void require_calls() const;
  void require_nothing_left(const char* asked) const;

  LowLatencyReceived send_batch(const LowLatencyInput& input, const LowLatencyCall& call);
  low_latency::CallParams call_params(const LowLatencyCall& call);
  void launch_dispatch(low_latency::DispatchParams params, low_latency::Part part, uint32_t blocks,
                       Stream stream);
  void launch_combine(low_latency::CombineParams params, bool logfmt, low_latency::Part part,
                      uint32_t blocks, Stream stream);
  Handle take_batch();
  /// What calls have found wrong, as far as the host can see: throws the first of it, once.
  void raise_findings();
  void raise_difference();
  void raise_mistake();
  /// Those under way: their handles are refused from now on, and so are hooks that were not called.
  void end_batches();

  low_latency::Workspace read_workspace();
  /// Nothing is sent any more for what other ranks dispatched.
  void forget_rows();
  /// Refills what these ranks may have left behind and unmasks them, and ends the batches under
  /// way; `drained` is what they are taken to have drained.
  void readmit(const low_latency::RankSet& ranks, low_latency::Drained drained);

  Accelerator& accelerator_;
  Arena& arena_;
  const low_latency::Plan plan_;
  const low_latency::WindowLayout layout_;
  const low_latency::SumsLayout sums_;
  const low_latency::ExpertHomes homes_;
  ArenaBlock window_;
  low_latency::Windows windows_{};            ///< everybody's window_
  std::optional<DeviceMemory> window_table_;  ///< of those that are not at hand
  const DeviceMemory workspace_;              ///< a Workspace
  const DeviceMemory complaint_;              ///< a Complaint
  low_latency::RankMasks masks_;
  std::array<std::shared_ptr<low_latency::Batch>, 2> batches_;
  std::deque<Handle> dispatches_left_, combines_left_;  ///< sent, in order; receive is to come
  LastStream last_stream_;
  std::chrono::nanoseconds longest_timeout_{};  ///< of a call so far, as its kernel took it
  std::mutex findings_mutex_;  ///< any thread may ask what was found, whoever makes a call
  low_latency::RankSet differences_raised_{};  ///< ranks that are masked for one
  bool closed_ = false;
};

}  // namespace tokenyard
