/// A rank's message to all others after a collective step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_stream.hpp"

namespace tokenyard {

/// A step's result or, if it failed, the name of the failed call or the sentence of an error that
/// has no code.
struct StepOutcome {
  bool failed = false;
  uint32_t code = 0;  ///< error code of the failed call; 0 if there is none
  std::vector<std::byte> bytes = {};

  friend void visit(auto& stream, MaybeConst<StepOutcome> auto& outcome) {
    stream(outcome.failed, outcome.code);
    stream.text(outcome.bytes);
  }
};

}  // namespace tokenyard
