/// A trace as bytes: ranks send theirs to one another.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

class TraceCodec {
 public:
  static std::vector<std::byte> encode(const Trace& trace);
  /// Throws InternalError, which names `from`, the rank that sent the bytes, if they are no trace,
  /// or not as they were sent. What it returns names tasks, workers and events of its own that
  /// there are.
  static Trace decode(std::span<const std::byte> bytes, uint32_t from);
};

}  // namespace tokenyard::megakernel
