// Messages between ranks, over their links, and the outcomes of steps in them.
#include "fabric/step_outcome.hpp"
#include "fuzz/fuzz.hpp"
#include "job/message_fields.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tokenyard;
  fuzz::Input input(data, size);
  const bool outcome = input.flag();
  const auto bytes = input.rest();
  if (outcome) {
    if (const auto decoded = from_bytes<StepOutcome>(bytes))
      fuzz::require_same_bytes(to_bytes(*decoded), bytes, "an outcome reads as it was written");
  } else if (const auto decoded = from_bytes<Message>(bytes)) {
    fuzz::require_same_bytes(to_bytes(*decoded), bytes, "a message reads as it was written");
  }
  return 0;
}
