/// The two batches that an object may have in progress, and the hooks still to be called.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "expert_parallel/low_latency/host/batch.hpp"
#include "expert_parallel/low_latency/host/setup.hpp"

namespace tokenyard::low_latency {

class Batches {
 public:
  using Handle = std::shared_ptr<LowLatencyHandle>;

  /// Collective: if the memory of a rank has no room, throws on all ranks alike.
  explicit Batches(const Setup& setup);
  /// Takes part in the constructor of ranks that join, beside an object that this rank has.
  static void accompany(World& world);

  /// Returns the handle of a new batch. Throws InvalidArgument if two are in progress.
  Handle take();
  /// Throws InvalidArgument unless `handle` is a batch of this object at this stage.
  void check(const Handle& handle, LowLatencyHandle::Stage stage) const;
  /// Returns memory for the batch's results. Throws InvalidArgument unless it is in progress.
  TensorView combine_buffer(const Handle& handle) const;
  /// Ends the batches in progress: from now on their handles and uncalled hooks are refused.
  /// `how`: ended, or outlived.
  void end(LowLatencyHandle::Stage how = LowLatencyHandle::Stage::ended);
  /// Enqueues that nothing more is sent for tokens that other ranks dispatched.
  void forget_rows(Stream stream) const;
  /// Throws InvalidArgument if a hook has not been called; `asked` names what the caller wants to
  /// do.
  void require_hooks_called(const char* asked) const;

  std::deque<Handle> dispatches_left, combines_left;  ///< sent, in order; not received

 private:
  const Setup& setup_;
  std::array<std::shared_ptr<Batch>, 2> batches_;
};

}  // namespace tokenyard::low_latency
