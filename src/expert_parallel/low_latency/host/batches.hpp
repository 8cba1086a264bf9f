/// The two batches that an object may have under way, and the hooks that are still to be called.
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

  explicit Batches(const Setup& setup);

  /// Returns the handle of a new batch; throws InvalidArgument while two are under way.
  Handle take();
  /// Throws InvalidArgument unless it is a batch of this object, at this stage.
  void check(const Handle& handle, LowLatencyHandle::Stage stage) const;
  /// Returns memory for the batch's results; throws InvalidArgument unless it is under way.
  TensorView combine_buffer(const Handle& handle) const;
  /// Ends those under way: their handles are refused from now on, and so are hooks that were not
  /// called.
  void end();
  /// Enqueues: nothing is sent any more for what other ranks dispatched.
  void forget_rows(Stream stream) const;
  /// Throws InvalidArgument if a hook was not called; `asked` is what the caller wants first.
  void require_hooks_called(const char* asked) const;

  std::deque<Handle> dispatches_left, combines_left;  ///< sent, in order; receive is to come

 private:
  const Setup& setup_;
  std::array<std::shared_ptr<Batch>, 2> batches_;
};

}  // namespace tokenyard::low_latency
