/// Dynamic events for graphs that are not built in C++: earlier tasks have put the counts in
/// memory.
#pragma once

#include "megakernel/kernels/context.hpp"
#include "megakernel/tasks/fields.hpp"

namespace tokenyard::megakernel {

/// Announces that the event of this rank gets `count` signals in this iteration. The task must list
/// it in `expects`.
struct ExpectSignals {
  static constexpr const char* kName = "expect_signals";
  struct Args {
    const uint32_t* count;
    Event event;
  };
  static constexpr ArgField kFields[] = {TOKENYARD_FIELD(pointer, count),
                                         TOKENYARD_FIELD(event, event)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("count", args.count, 1);
    touches.expects("event", args.event);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    if (context.thread() == 0) context.expect(args.event, *args.count);
  }
};

/// Signals a rank's event `count` times. The task must declare a dynamic signal to it.
struct SignalOften {
  static constexpr const char* kName = "signal_often";
  struct Args {
    const uint32_t* count;
    Event event;
    uint32_t rank;
  };
  static constexpr ArgField kFields[] = {TOKENYARD_FIELD(pointer, count),
                                         TOKENYARD_FIELD(event, event), TOKENYARD_FIELD(u32, rank)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("count", args.count, 1);
    touches.signals("event", args.event, "rank", args.rank);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    if (context.thread() == 0) context.signal(args.event, args.rank, *args.count);
  }
};

}  // namespace tokenyard::megakernel
