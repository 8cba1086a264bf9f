/// A rank that an exchange goes on without, or has failed for.
#pragma once

#include <cstdint>
#include <string>

namespace tokenyard {

/// Why the rank failed, and what was awaited of it.
struct FailedRank {
  enum class Why : uint8_t {
    timeout,   ///< it did not answer before the deadline
    lost,      ///< it has left, or its control connection closed
    left_out,  ///< a caller on this rank left it out, or it is absent: its slot is empty
    differs,   ///< its call differs from this rank's, or cannot be
  };
  uint32_t rank = 0;
  Why why = Why::timeout;
  std::string phase = {};           ///< what was awaited, "dispatch: counts"
  uint64_t expected = 0, seen = 0;  ///< mostly epochs; of a rank that differs the two values
  double waited_s = 0;
  /// All of it in a sentence: "rank 1 did not answer in phase "low latency dispatch: ids": expected
  /// 3, seen 2, after 0.4 s".
  std::string text = {};
};

}  // namespace tokenyard
