/// The memory of one batch of tokens on a rank, from its dispatch to its combine. An object has
/// two, as staging has two parities.
#pragma once

#include <memory>
#include <optional>

#include "device/device_memory.hpp"
#include "expert_parallel/low_latency/host/plan.hpp"

namespace tokenyard {

class LowLatencyHandle;

namespace low_latency {

/// The choices of a dispatch's own tokens, if an expert map moves them.
struct PlacedChoices {
  int64_t* placed;  ///< [tokens_max, topk] places
  int32_t* lost;    ///< [tokens_max] choices of each token that have no place
};

class Batch {
 public:
  /// `number`: 0 or 1, this rank's number for the batch, under which peers store its weights.
  Batch(Accelerator& accelerator, const LowLatencyOptions& options, uint32_t ranks,
        uint32_t number);

  // For the ranks that hold most experts; the others allocate as much.
  static uint64_t bytes(const LowLatencyOptions& options, uint32_t ranks);
  static uint64_t combine_bytes(const LowLatencyOptions& options, uint32_t ranks);

  const DispatchOut& out() const { return out_; }
  const PlacedChoices& choices() const { return choices_; }
  uint32_t number() const { return number_; }
  /// Returns memory for experts' results, allocated at the first call.
  void* combine_buffer();

  /// Handle of the batch that uses this memory: not combined yet, or its receive is still to come.
  std::weak_ptr<LowLatencyHandle> holder;

 private:
  Accelerator& accelerator_;
  const uint32_t number_;
  size_t combine_bytes_;
  const DeviceMemory memory_;
  std::optional<DeviceMemory> combine_buffer_;
  DispatchOut out_;
  PlacedChoices choices_;
};

}  // namespace low_latency

/// The state of a batch, and what is left to do of it.
class LowLatencyHandle {
 public:
  enum class Stage : uint8_t {
    dispatch_sent,
    dispatched,
    combine_sent,
    combined,
    ended,    ///< without being combined: see Batches::end
    outlived  ///< the same, by the session that it was of
  };

  LowLatencyHandle(std::shared_ptr<low_latency::Batch> batch, const void* made_by)
      : batch(std::move(batch)), made_by(made_by) {}
  LowLatencyHandle(const LowLatencyHandle&) = delete;
  LowLatencyHandle& operator=(const LowLatencyHandle&) = delete;

  /// Marks the batch `combined` or `ended`: another batch may use its memory, in stream order.
  void end(Stage how) {
    stage = how;
    batch->holder.reset();
    batch.reset();
  }

  std::shared_ptr<low_latency::Batch> batch;  ///< null once the batch is over
  const void* const made_by;                  ///< identifies the object
  Stage stage = Stage::dispatch_sent;
  uint32_t tokens = 0;
  bool weights_published = false;  ///< by the dispatch
  bool choices_placed = false;     ///< an expert map moved its choices
  /// Receiving parts of calls whose hooks have not been called.
  std::optional<low_latency::DispatchParams> dispatch_left;
  std::optional<low_latency::CombineParams> combine_left;
  uint32_t blocks_left = 0;
  bool logfmt_left = false;
};

}  // namespace tokenyard
