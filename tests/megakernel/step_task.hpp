/// A task that adds to a number, and may end its loop or signal a dynamic event.
#pragma once

#include "megakernel/kernels/worker_kernel.hpp"

namespace tokenyard::megakernel {

/// Adds `add` times the host's factor to a number in any memory; ends the loop from `end_at` on.
struct Step {
  static constexpr const char* kName = "step";
  struct Args {
    uint64_t* value;
    Peer<uint64_t> to;
    uint64_t add;
    const uint64_t* factor;  ///< host-visible, or null
    uint64_t end_at;         ///< 0: never
    Event promised;
    uint32_t promise, kept;  ///< expected and sent signals of a dynamic event; 0: none
  };
  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    if (context.thread() != 0) return;
    const uint64_t factor = args.factor == nullptr ? 1 : *args.factor;
    const uint64_t value = *args.value + args.add * factor;
    store<Order::weak, Scope::sys>(args.to, value);
    if (args.end_at > 0 && value >= args.end_at) context.end_loop();
    if (args.promise > 0) context.expect(args.promised, args.promise);
    if (args.kept > 0) context.signal(args.promised, context.rank(), args.kept);
  }
};

using StepTasks = TaskList<Step>;
TOKENYARD_DECLARE_KERNEL(step_kernel, RunParams);

}  // namespace tokenyard::megakernel
