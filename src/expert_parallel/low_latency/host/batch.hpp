/// The memory that one batch of tokens takes on a rank, from its dispatch to its combine. An object
/// has two, as staging has two parities.
#pragma once

#include <memory>
#include <optional>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/plan.hpp"

namespace tokenyard {

class LowLatencyHandle;

namespace low_latency {

class Batch {
 public:
  /// `number`: 0 or 1, this rank's own for it. What its peers are told of the batch's weights lies
  /// by it.
  Batch(Accelerator& accelerator, const LowLatencyOptions& options, uint32_t ranks,
        uint32_t number);

  // On the ranks that hold most experts; the others take as much.
  static uint64_t bytes(const LowLatencyOptions& options, uint32_t ranks);
  static uint64_t combine_bytes(const LowLatencyOptions& options, uint32_t ranks);

  const DispatchOut& out() const { return out_; }
  uint32_t number() const { return number_; }
  /// For experts' results; allocated when it is first asked for.
  void* combine_buffer();

  /// Of the batch that is in here: not combined yet, or its receive is still to come.
  std::weak_ptr<LowLatencyHandle> holder;

 private:
  Accelerator& accelerator_;
  const uint32_t number_;
  size_t combine_bytes_;
  const DeviceMemory memory_;
  std::optional<DeviceMemory> combine_buffer_;
  DispatchOut out_;
};

}  // namespace low_latency

/// What is left to be done of a batch.
class LowLatencyHandle {
 public:
  enum class Stage : uint8_t {
    dispatch_sent,
    dispatched,
    combine_sent,
    combined,
    ended  ///< before it was combined: see Batches::end
  };

  LowLatencyHandle(std::shared_ptr<low_latency::Batch> batch, const void* made_by)
      : batch(std::move(batch)), made_by(made_by) {}
  LowLatencyHandle(const LowLatencyHandle&) = delete;
  LowLatencyHandle& operator=(const LowLatencyHandle&) = delete;

  /// It is `combined` or `ended`: another batch may have the memory, in the order of streams.
  void end(Stage how) {
    stage = how;
    batch->holder.reset();
    batch.reset();
  }

  std::shared_ptr<low_latency::Batch> batch;  ///< null once it is over
  const void* const made_by;                  ///< the object: no other knows it
  Stage stage = Stage::dispatch_sent;
  uint32_t tokens = 0;
  bool weights_published = false;  ///< by the dispatch
  /// The second halves of calls whose hooks are still to be called.
  std::optional<low_latency::DispatchParams> dispatch_left;
  std::optional<low_latency::CombineParams> combine_left;
  uint32_t blocks_left = 0;
  bool logfmt_left = false;
};

}  // namespace tokenyard
