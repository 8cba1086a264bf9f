#include "collectives/membership/witness.hpp"

#include "tokenyard/error.hpp"

namespace tokenyard::collectives {
namespace {

Message promise_of(const WitnessRegister& memory) {
  Promise promise;
  promise.ballot = memory.promised;
  promise.accepted_in = memory.accepted_in;
  promise.accepted = memory.accepted;
  return {memory.epoch, std::move(promise)};
}

}  // namespace

WitnessAnswer ask_witness(const std::optional<WitnessRegister>& memory, const Message& message) {
  const auto* prepare = std::get_if<Prepare>(&message.body);
  const auto* accept = std::get_if<Accept>(&message.body);
  if ((prepare == nullptr) == (accept == nullptr))
    throw InternalError("the witness was asked for something else than a promise or a vote");
  const Ballot ballot = prepare != nullptr ? prepare->ballot : accept->ballot;

  WitnessRegister known = memory.value_or(WitnessRegister{});
  if (known.epoch > message.epoch) return {known, {message.epoch, FencedOff{known.epoch}}};
  if (known.epoch < message.epoch) known = WitnessRegister{.epoch = message.epoch};
  if (ballot < known.promised) return {known, {known.epoch, Refused{ballot, known.promised}}};
  known.promised = ballot;
  if (prepare != nullptr) return {known, promise_of(known)};
  known.accepted_in = ballot;
  known.accepted = accept->verdict;
  return {known, {known.epoch, Accepted{ballot}}};
}

}  // namespace tokenyard::collectives
