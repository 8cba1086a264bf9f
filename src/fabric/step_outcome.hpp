/// A rank's message to all others after a collective step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_stream.hpp"

namespace tokenyard {

/// A step's result or, if it failed, the name of the failed call or the sentence of an error that
/// has no code.
struct StepOutcome {
  bool failed = false;
  uint32_t code = 0;  ///< error code of the failed call; 0 if there is none
  std::vector<std::byte> bytes = {};
  /// Fields of an InvalidArgument; an empty argument means another error.
  std::string argument = {}, expected = {}, seen = {};

  friend void visit(auto& stream, MaybeConst<StepOutcome> auto& outcome) {
    stream(outcome.failed, outcome.code);
    stream.text(outcome.bytes);
    stream.text(outcome.argument);
    stream.text(outcome.expected);
    stream.text(outcome.seen);
  }
};

}  // namespace tokenyard
