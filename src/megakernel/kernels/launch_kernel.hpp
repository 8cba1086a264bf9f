/// Signals of tasks. Workers and schedulers wait for them by polling their counters.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// A signal whose counter has been looked up; for another rank that takes a table access.
///
/// Within this GPU it is sent in two steps, which lets other loads overlap with the fence:
/// release() orders everything that the calling thread has seen before the signal, add_released()
/// sends it.
struct CountedSignal {
  Peer<uint64_t> counter;
  uint32_t count;  ///< 0: no signal
  bool sys;

  TOKENYARD_DEVICE static CountedSignal of(const RunParams& params, const SignalRecord& record) {
    return {params.windows.counter(record.rank, record.event), record.count, record.sys != 0};
  }
  /// Announces the signal, in dynamic runs, once the task has run: schedulers assign the next tasks
  /// while this signal's fence is in progress.
  TOKENYARD_DEVICE void announce() const {
    if (is_near())
      // Relaxed: the worker that runs the next task acquires the signal itself.
      add<Order::relaxed, Scope::gpu>(announced_beside(counter), count);
  }
  TOKENYARD_DEVICE void release() const {
    if (is_near()) [[likely]]
      fence_release<Scope::gpu>();
  }
  TOKENYARD_DEVICE void add_released() const {
    // All additions to a counter have the same scope: only then are they atomic.
    if (is_near()) [[likely]]
      add<Order::relaxed, Scope::gpu>(counter, count);  // After the fence.
    else if (count != 0)
      add<Order::release, Scope::sys>(counter, count);
  }
  TOKENYARD_DEVICE void send(bool announces) const {
    if (announces) announce();
    release();
    add_released();
  }

 private:
  TOKENYARD_DEVICE bool is_near() const { return count != 0 && !sys; }
};

}  // namespace tokenyard::megakernel
