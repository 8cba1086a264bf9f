/// A task of one's own: a C++ type that says its name, its arguments, which memory it touches, and
/// what all threads of a block do.
#pragma once

#include <tokenyard/megakernel/task.hpp>

/// to[i] = factor * from[i], by all threads of a block.
struct Scale {
  static constexpr const char* kName = "scale";
  struct Args {
    const float* from;
    float* to;
    uint32_t count;
    float factor;
  };
  static void touches(tokenyard::megakernel::Touches& touches, const Args& args) {
    touches.reads("from", args.from, args.count);
    touches.writes("to", args.to, args.count);
  }
  static TOKENYARD_DEVICE void run(tokenyard::megakernel::Context& context, const Args& args) {
    for (uint32_t i = context.thread(); i < args.count; i += context.threads())
      args.to[i] = args.factor * args.from[i];
  }
};

using MyTasks = tokenyard::megakernel::TaskList<Scale>;
TOKENYARD_DECLARE_KERNEL(my_kernel, tokenyard::megakernel::RunParams);
