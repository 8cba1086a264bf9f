/// A trace as bytes, for the exchange between ranks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tokenyard/megakernel/trace.hpp"

namespace tokenyard::megakernel {

class TraceCodec {
 public:
  static std::vector<std::byte> encode(const Trace& trace);
  /// Throws InternalError, which names `from`, the sending rank, if the bytes are no trace or were
  /// damaged. Task, worker and event indices of the result are in range.
  static Trace decode(std::span<const std::byte> bytes, uint32_t from);
};

}  // namespace tokenyard::megakernel
