/// Exchange and sum of partial sums between tensor-parallel ranks.
#pragma once

#include "megakernel/tasks/fields.hpp"
#include "megakernel/tasks/rows.hpp"

namespace tokenyard::megakernel {

/// Copies words of this rank's memory to a peer's memory. The task must signal an event of that
/// peer.
struct CopyToPeer {
  static constexpr const char* kName = "copy_to_peer";
  struct Args {
    const uint32_t* from;
    Peer<uint32_t> to;
    uint32_t words;
  };
  static constexpr ArgField kFields[] = {TOKENYARD_FIELD(pointer, from), TOKENYARD_FIELD(peer, to),
                                         TOKENYARD_FIELD(u32, words)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads("from", args.from, args.words);
    touches.of_any_type();
    touches.writes("to", args.to.address(), args.words);
    touches.of_any_type();
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    for (uint32_t i = context.thread(); i < args.words; i += context.threads())
      store<Order::weak, Scope::sys>(args.to + i, args.from[i]);
  }
};

/// Computes y = residual + parts[0] + parts[1] + ..., in rank order: bitwise equal on all ranks.
struct Reduce {
  static constexpr const char* kName = "reduce";
  struct Args {
    const float* parts;     ///< [part_count][stride]
    const float* residual;  ///< [count], or null
    float* y;               ///< [count]
    uint32_t part_count, stride, count;
  };
  static constexpr ArgField kFields[] = {
      TOKENYARD_FIELD(pointer, parts), TOKENYARD_FIELD(pointer, residual),
      TOKENYARD_FIELD(pointer, y),     TOKENYARD_FIELD(u32, part_count),
      TOKENYARD_FIELD(u32, stride),    TOKENYARD_FIELD(u32, count)};
  static void touches(Touches& touches, const Args& args) {
    touches.reads_rows("parts", args.parts, args.count, args.part_count, args.stride);
    if (args.residual != nullptr) touches.reads("residual", args.residual, args.count);
    touches.writes("y", args.y, args.count);
  }

  static TOKENYARD_DEVICE void run(Context& context, const Args& args) {
    for (uint32_t i = context.thread(); i < args.count; i += context.threads()) {
      float sum = args.residual == nullptr ? 0 : args.residual[i];
      for (uint32_t part = 0; part < args.part_count; ++part)
        sum += args.parts[size_t{part} * args.stride + i];
      args.y[i] = sum;
    }
  }
};

}  // namespace tokenyard::megakernel
