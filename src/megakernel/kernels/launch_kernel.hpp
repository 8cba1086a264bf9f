/// Signals of tasks: who waits for them, a worker or a scheduler, looks at their counters.
#pragma once

#include "megakernel/kernels/waiting_kernel.hpp"

namespace tokenyard::megakernel {

/// A signal with its counter looked up: that of another rank lies in a table.
///
/// Within this GPU it is sent in two steps, so that something may be looked at meanwhile: once it
/// is added, what the calling thread knew when it was released is what the event is about.
struct CountedSignal {
  Peer<uint64_t> counter;
  uint32_t count;  ///< 0: there is none
  bool sys;

  DEVICE static CountedSignal of(const RunParams& params, const SignalRecord& record) {
    return {params.windows.counter(record.rank, record.event), record.count, record.sys != 0};
  }
  /// In dynamic runs, once the task has run: schedulers assign what comes next while this signal's
  /// fence is under way.
  DEVICE void announce() const {
    if (is_near())
      // Relaxed: whoever runs what comes next acquires the signal itself.
      add<Order::relaxed, Scope::gpu>(announced_beside(counter), count);
  }
  DEVICE void release() const {
    if (is_near()) [[likely]]
      fence_release<Scope::gpu>();
  }
  DEVICE void add_released() const {
    // One scope for all who add to a counter: only then are their additions whole.
    if (is_near()) [[likely]]
      add<Order::relaxed, Scope::gpu>(counter, count);  // After the fence.
    else if (count != 0)
      add<Order::release, Scope::sys>(counter, count);
  }
  DEVICE void send(bool announces) const {
    if (announces) announce();
    release();
    add_released();
  }

 private:
  DEVICE bool is_near() const { return count != 0 && !sys; }
};

}  // namespace tokenyard::megakernel
