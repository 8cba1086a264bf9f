#include "membership/witness_question.hpp"

#include <utility>

#include "membership/message_codec.hpp"

namespace tokenyard::membership {

std::optional<WitnessQuestion::Bytes> WitnessQuestion::next(std::optional<Bytes> held) {
  if (held && held->empty()) held.reset();
  expected_ = std::move(held);
  std::optional<WitnessRegister> memory;
  if (expected_) {
    memory = decode_witness(*expected_);
    if (!memory) return std::nullopt;  // Written by somebody else: not to be overwritten.
  }
  WitnessAnswer answer = ask_witness(memory, question_, mutant_);
  Bytes desired = encode(answer.memory);
  const bool lost_race_counts = tried_ && mutant_ == Mutant::witness_races_ignored;
  tried_ = true;
  if (expected_ != desired && !lost_race_counts) return desired;
  reply_ = std::move(answer.reply);
  return std::nullopt;
}

}  // namespace tokenyard::membership
